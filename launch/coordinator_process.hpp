#pragma once
#include <string>

namespace troupe {

/// The job's coordinator as a process: listens on the loopback interface, writes `port N` on standard output, ends when standard input does
/// (the launcher holds the other end). Returns the exit code.
int run_coordinator(const std::string& job_id, int world_size);

}  // namespace troupe
