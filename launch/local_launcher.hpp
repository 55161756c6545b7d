#pragma once
#include <string>
#include <vector>

namespace troupe {

struct LocalLaunchOptions {
  int nproc = 1;
  std::string run_dir = "runs/latest";  ///< rank<k>.log go there
  std::string troupe_program;           ///< our own executable, for the coordinator
  std::vector<std::string> command;     ///< the program and its arguments
};

/// Starts a coordinator and `nproc` ranks on this machine, shows their output with the rank before each line and writes it to their logs,
/// waits for all. Returns the exit code: 0, the first failing rank's, or 128 + signal after Ctrl-C, SIGTERM or SIGHUP, which the ranks get
/// as a request to finish their step; a second one kills them. No process is left behind, whatever happens. Main thread only. Throws Error
/// where nothing could be started.
int launch_local(const LocalLaunchOptions& options);

}  // namespace troupe
