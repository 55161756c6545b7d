#pragma once
#include <string>

namespace troupe {

/// This machine's address from which `host` is reached; loopback for loopback. Throws Error(unavailable) if the name
/// does not resolve or there is no way to it.
std::string local_address_towards(const std::string& host, int port);

}  // namespace troupe
