#pragma once
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// A secret that a rank leaves for one peer at the job's rendezvous, beside its address.
using LinkToken = std::array<std::uint8_t, 16>;
LinkToken random_link_token();

/// A connection to be made between this rank and a peer. Ports are open to anybody on the network while ranks connect,
/// so the rank that dials says the other's token first, and the other answers with the dialling one's: whoever has not
/// read the rendezvous is a stranger, and is closed.
struct PeerLink {
  int rank = -1;               ///< the peer, as the group counts
  bool dials = false;          ///< this side dials, the other listens
  sockaddr_storage address{};  ///< of the peer; where this side dials
  LinkToken mine{}, theirs{};
  int listener = -1;  ///< where this side listens; stays the caller's
  int fd = -1;        ///< the connection, once there is one; the caller's then
};

/// Makes all connections at once. Throws LinkFault that names the peers whose host does not answer, Error(peer_lost)
/// for one that has closed its port, Error(timeout) for those that did not come or did not know the token by the
/// deadline, Error(unavailable) where this process has no descriptor left; no connection is left open then.
void connect_links(std::vector<PeerLink>& links, const CommunicatorOptions& options, const std::string& operation,
                   std::chrono::steady_clock::time_point deadline);

}  // namespace troupe
