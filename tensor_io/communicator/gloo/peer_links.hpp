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

/// A connection to be made between this rank and a peer. Ports are open to the whole network while ranks connect. So
/// the rank that dials sends the other's token first, and the other answers with the dialling one's. A peer that has
/// not read the rendezvous is a stranger, and its connection is closed.
struct PeerLink {
  int rank = -1;               ///< the peer, in the group's numbers
  bool dials = false;          ///< this side dials, the other listens
  sockaddr_storage address{};  ///< of the peer; if this side dials
  LinkToken mine{}, theirs{};
  int listener = -1;  ///< on which this side listens; stays the caller's
  int fd = -1;        ///< the connection, once there is one; the caller's then
};

/// Makes all connections at once. Throws LinkFault with the peers whose host does not answer, and Error(peer_lost) for
/// a peer that has closed its port. Throws Error(timeout) for peers that did not come or did not know the token by the
/// deadline, and Error(unavailable) if this process has no descriptor left. No connection is left open then.
void connect_links(std::vector<PeerLink>& links, const CommunicatorOptions& options, const std::string& operation,
                   std::chrono::steady_clock::time_point deadline);

}  // namespace troupe
