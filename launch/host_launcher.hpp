#pragma once
#include <string>

#include "launch/launcher.hpp"

namespace troupe {

/// `launch` for a host list: a coordinator here, an agent on each host, over ssh or, for this machine, without. Output comes back over the
/// agents' pipes; an agent ends when its standard input does, so nothing outlives the launcher.
LaunchOutcome launch_on_hosts(const LauncherOptions& options, int starts_over);

/// This machine's address from which `host` is reached; loopback for loopback. Throws Error(unavailable) if the name does not resolve or
/// there is no way to it.
std::string local_address_towards(const std::string& host, int port);

/// 128 random bits, as text.
std::string make_job_id();

}  // namespace troupe
