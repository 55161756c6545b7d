#pragma once
#include <string>
#include <vector>

namespace troupe {

/// How a rank's process ended, for the last lines that a user reads.
struct FailedProcess {
  int slot = -1;
  std::string host;
  std::string how;  ///< `exit code 1`, `signal 9 (Killed)`
  std::string log_path;
  std::string last_line;  ///< what it printed last; empty: nothing
};

/// Rank, host, how, log, last line, and the next command to type; `remote`: it is to be typed on another machine than
/// the host.
std::string describe_failure(const FailedProcess& failed, bool remote);

/// The same command, told to go on from the last checkpoint.
std::string resume_command(const std::vector<std::string>& words);

/// This process's own words, from the kernel.
std::vector<std::string> own_command();

}  // namespace troupe
