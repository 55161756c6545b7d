#pragma once
#include <string>
#include <vector>

namespace troupe {

/// The end of a rank's process, for the last lines that a user reads.
struct FailedProcess {
  int slot = -1;
  std::string host;
  std::string how;  ///< `exit code 1`, `signal 9 (Killed)`
  std::string log_path;
  std::string last_line;  ///< its last output; empty: none
};

/// Rank, host, end, log, last line, and the next command to type; `remote`: it is for another machine than the
/// host.
std::string describe_failure(const FailedProcess& failed, bool remote);

/// The same command, with the flag to go on from the last checkpoint. `run`: what --resume is to say, unless it says
/// `auto` or `latest` already: `auto`, or the run's folder.
std::string resume_command(const std::vector<std::string>& words, const std::string& run);

/// This process's command line, from the kernel.
std::vector<std::string> own_command();

}  // namespace troupe
