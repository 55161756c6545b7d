#include "launch/process/peer_user.hpp"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>

namespace troupe {
namespace {

constexpr unsigned char kEstablished = 1;  // of the kernel's states of a TCP connection

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 request;
};

struct Reply {
  nlmsghdr header;
  inet_diag_msg socket;
};

}  // namespace

std::optional<uid_t> user_of_peer(const sockaddr_in& peer, std::uint16_t port) {
  Question question{};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.request.sdiag_family = AF_INET;
  question.request.sdiag_protocol = IPPROTO_TCP;
  question.request.idiag_states = ~0U;
  auto& id = question.request.id;  // the other end's: its source is the peer
  id.idiag_sport = peer.sin_port;
  id.idiag_dport = htons(port);
  id.idiag_src[0] = peer.sin_addr.s_addr;
  id.idiag_dst[0] = htonl(INADDR_LOOPBACK);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;

  const int kernel = ::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (kernel < 0) return std::nullopt;
  std::array<std::byte, 4096> bytes{};
  const bool answered = ::send(kernel, &question, sizeof question, 0) == ssize_t{sizeof question} &&
                        ::recv(kernel, bytes.data(), bytes.size(), MSG_DONTWAIT) >= ssize_t{sizeof(Reply)};
  ::close(kernel);
  Reply reply{};
  std::memcpy(&reply, bytes.data(), sizeof reply);
  // Without such a connection the kernel may show a listener of that port. A socket that its process has closed has no
  // inode, and counts as root's.
  if (!answered || reply.header.nlmsg_type != SOCK_DIAG_BY_FAMILY || reply.socket.idiag_state != kEstablished ||
      reply.socket.idiag_inode == 0)
    return std::nullopt;
  return reply.socket.idiag_uid;
}

}  // namespace troupe
