#pragma once
#include <string>
#include <vector>

namespace troupe {

extern const char* const kDebugHelp;

/// `troupe debug` with these words after it: runs the program that they name several times, for some seconds each, and
/// prints its findings in six steps. Returns the exit status: 0, or 1 if anything failed. `troupe_program`: our own
/// path. Main thread. Throws Error(usage), and Error(interrupted) after a Ctrl-C.
int debug_command(const std::vector<std::string>& words, const std::string& troupe_program);

}  // namespace troupe
