#include "launch/process/local_address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

std::string text_of(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return text;
}

}  // namespace

Addresses look_up(const std::string& name, const char* service, int family, int flags, int& failure) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  failure = ::getaddrinfo(name.c_str(), service, &hints, &found);
  return {failure == 0 ? found : nullptr, &::freeaddrinfo};
}

std::string ipv4_address_of(const std::string& host) {
  int error = 0, other_error = 0;
  if (const auto found = look_up(host, nullptr, AF_INET, 0, error))
    return text_of(*reinterpret_cast<const sockaddr_in*>(found->ai_addr));
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (look_up(bracketed ? host.substr(1, host.size() - 2) : host, nullptr, AF_INET6, 0, other_error))
    throw Error(ErrorCode::usage, "host " + displayable(host, 200), "it has only an IPv6 address, and ranks use IPv4",
                "give an IPv4 address, or a name that has one");
  throw Error(ErrorCode::unavailable, "host " + displayable(host, 200), gai_strerror(error),
              "check the name, or give its address");
}

void note_loopback_name(const std::string& host, const std::string& address) {
  if (!address.starts_with("127.") || host.starts_with("127.") || host == "localhost") return;
  std::fprintf(stderr,
               "note: %s is %s on this machine, which other hosts cannot reach; with several hosts give its address\n",
               displayable(host, 200).c_str(), address.c_str());
}

std::string local_address_towards(const std::string& host, int port) {
  sockaddr_in theirs{}, mine{};
  theirs.sin_family = AF_INET;
  theirs.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, ipv4_address_of(host).c_str(), &theirs.sin_addr);
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  socklen_t length = sizeof mine;
  // Nothing is sent: the kernel only chooses the way.
  const bool known = ::connect(fd, reinterpret_cast<const sockaddr*>(&theirs), sizeof theirs) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0;
  const int error = errno;
  ::close(fd);
  if (!known)
    throw Error(ErrorCode::unavailable, "host " + displayable(host, 200), std::strerror(error), "is the network up?");
  return text_of(mine);
}

}  // namespace troupe
