#pragma once
#include <netinet/in.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace troupe {

/// The user whose process opened the other end of a TCP connection to 127.0.0.1: `peer` is that end, `port` is this
/// one's. Empty if the connection is not open, no process holds that end, or the kernel does not say (sock_diag(7)).
std::optional<uid_t> user_of_peer(const sockaddr_in& peer, std::uint16_t port);

}  // namespace troupe
