#pragma once
#include <string>

namespace troupe {

/// A script that completes `troupe`'s verbs, their words, flags and files in bash, zsh or fish. It takes the flags from
/// `troupe VERB --help` on each completion, so it knows all that the program knows. Throws Error(usage) for another
/// shell.
std::string completion_script(const std::string& shell);

}  // namespace troupe
