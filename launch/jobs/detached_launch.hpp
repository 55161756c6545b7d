#pragma once
#include "launch/launcher/launcher.hpp"

namespace troupe {

/// launch() in a process with its own session, which no terminal's end reaches. Its lines go to job_log_of the
/// run's folder, and are shown here until all ranks have begun: then this returns 0. A job that ends before, or does
/// not begin within two minutes, is waited for; its exit code is returned. A signal meanwhile is the job's. Call it
/// before any thread. Throws Error(unavailable) where there can be no process.
int launch_detached(const LauncherOptions& options);

}  // namespace troupe
