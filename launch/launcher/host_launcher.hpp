#pragma once
#include <string>

#include "launch/launcher/launcher.hpp"
#include "launch/process/run_of_job.hpp"
#include "launch/run/run_lock.hpp"

namespace troupe {

/// `launch` for a host list: a coordinator here, an agent on each host, over ssh or, for this machine, without. Output
/// comes back over the agents' pipes; an agent ends when its standard input does, so nothing outlives the launcher.
LaunchOutcome launch_on_hosts(const LauncherOptions& options, const RunOfJob& run, RunLock& lock, int starts_over);

}  // namespace troupe
