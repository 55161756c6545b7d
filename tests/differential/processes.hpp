#pragma once
#include <string>

#include "tests/differential/life.hpp"

namespace troupe::differential {

/// Starts a process for each rank with `troupe launch`, as a user does, and waits for their end. Event `kill`: SIGKILL
/// comes to the last slot's first process at the job's place, and the launcher starts another. Returns what the job
/// ended with, empty if all is well. Ends all processes if they take too long. Main thread.
std::string run_processes(const Run& run, Notes& notes);

/// What such a process does: `differential --rank FOLDER`. Returns its exit code.
int rank_main(const std::string& folder);

}  // namespace troupe::differential
