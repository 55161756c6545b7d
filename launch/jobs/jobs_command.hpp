#pragma once
#include <string>
#include <vector>

namespace troupe {

/// `troupe ps`: this user's jobs on this host, a line each. Returns the exit code. Throws Error(usage).
int ps_command(const std::vector<std::string>& words);

/// `troupe attach [RUN]`: shows the output of a detached job, until it ends, and passes Ctrl-C on to it; for a job that
/// is over, the last lines. Returns the job's exit code, or 0 if it leaves the job alone. Throws Error(usage,
/// unavailable).
int attach_command(const std::vector<std::string>& words);

}  // namespace troupe
