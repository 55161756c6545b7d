#pragma once
#include "launch/launcher/launcher.hpp"

namespace troupe {

/// launch() in a process with its own session, which the end of a terminal does not reach. Its lines go to job_log_of
/// the run's folder, and are shown here until all ranks have begun, or for two minutes: then this returns 0. If the job
/// ends before, this returns its exit code. A signal meanwhile is passed to the job. Call it before any thread. Throws
/// Error(unavailable) if no process can be made.
int launch_detached(const LauncherOptions& options);

}  // namespace troupe
