#include "launch/process/local_address.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "tensor_io/base/error.hpp"

namespace troupe {

std::string local_address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    throw Error(ErrorCode::unavailable, "host " + host, gai_strerror(error),
                "check the name, or give its address in the host list");
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> guard(found, &::freeaddrinfo);
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in mine{};
  socklen_t length = sizeof mine;
  // Nothing is sent: the kernel only chooses the way.
  const bool known = ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0;
  const int error = errno;
  ::close(fd);
  if (!known) throw Error(ErrorCode::unavailable, "host " + host, std::strerror(error), "is the network up?");
  char text[INET_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET, &mine.sin_addr, text, sizeof text);
  return text;
}

}  // namespace troupe
