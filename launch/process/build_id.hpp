#pragma once
#include <string>

namespace troupe {

/// Distinguishes this program from every other build: the linker's build id, else a hash of the program's file.
/// Hexadecimal; any thread.
std::string program_build_id();

}  // namespace troupe
