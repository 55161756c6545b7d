#pragma once
#include <string>

namespace troupe {

/// A script that completes `troupe`'s verbs, their words, flags and files in bash, zsh or fish. Flags come from `troupe
/// VERB --help` when they are asked for, so the script knows what the program knows. Throws Error(usage) for another
/// shell.
std::string completion_script(const std::string& shell);

}  // namespace troupe
