#pragma once
#include <string>

#include "launch/launcher/launcher.hpp"

namespace troupe {

/// `launch` for a host list: a coordinator here, an agent on each host, over ssh or, for this machine, without. Output
/// comes back over the agents' pipes; an agent ends when its standard input does, so nothing outlives the launcher.
LaunchOutcome launch_on_hosts(const LauncherOptions& options, int starts_over);

/// 128 random bits, as text.
std::string make_job_id();

}  // namespace troupe
