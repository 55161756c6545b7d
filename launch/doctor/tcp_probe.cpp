#include "launch/doctor/tcp_probe.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "launch/process/displayable.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPatience = 5s;       // for a connection, and for each answer
constexpr auto kLongestVisit = 90s;  // a whole measurement
constexpr std::size_t kTokenDigits = 32;
constexpr int kRoundTrips = 51;

struct Socket {
  int fd = -1;
  explicit Socket(int given) : fd(given) {}
  ~Socket() {
    if (fd >= 0) ::close(fd);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
};

struct Addresses {
  addrinfo* first = nullptr;
  ~Addresses() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
};

void resolve(const std::string& address, const std::string& port, int flags, Addresses& found) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  if (const int failure = ::getaddrinfo(address.c_str(), port.c_str(), &hints, &found.first); failure != 0)
    throw Error(ErrorCode::unavailable, displayable(address), ::gai_strerror(failure),
                "give its IP address (address=A in the host list)");
}

void set_patience(int fd, std::chrono::seconds patience = kPatience) {
  const timeval limit{patience.count(), 0};
  const int one = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

bool send_all(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto n = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

bool receive_all(int fd, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const auto n = ::recv(fd, at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

std::string new_token() {
  std::random_device random;
  char digits[kTokenDigits + 1];
  std::snprintf(digits, sizeof digits, "%08x%08x%08x%08x", random(), random(), random(), random());
  return digits;
}

// Token, pings, then data until the other side ends its direction; the answer is how much came.
void serve_visitor(int fd, const std::string& token, const std::atomic<bool>& stop) {
  set_patience(fd);
  char said[kTokenDigits];
  if (!receive_all(fd, said, sizeof said)) return;
  unsigned difference = 0;
  for (std::size_t i = 0; i < kTokenDigits; ++i) difference |= static_cast<unsigned char>(said[i] ^ token[i]);
  if (difference != 0 || !send_all(fd, "k", 1)) return;
  char ping = 0;
  for (int i = 0; i < kRoundTrips; ++i) {
    if (!receive_all(fd, &ping, 1) || !send_all(fd, &ping, 1)) return;
  }
  std::uint64_t count = 0;
  std::vector<char> block(1 << 18);
  for (const auto begin = Clock::now(); !stop && Clock::now() < begin + kLongestVisit;) {
    const auto n = ::recv(fd, block.data(), block.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    if (n == 0) {
      send_all(fd, &count, sizeof count);
      return;
    }
    count += static_cast<std::uint64_t>(n);
  }
}

[[noreturn]] void unreachable(const std::string& where, const std::string& cause) {
  throw Error(ErrorCode::unavailable, where, cause,
              "let the hosts of a job reach each other on all ports (firewall, routes, address=A)");
}

int connect_to(const std::string& address, std::uint16_t port) {
  Addresses found;
  resolve(address, std::to_string(port), 0, found);
  const auto where = displayable(address) + " port " + std::to_string(port);
  Socket connection(::socket(found.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connection.fd < 0) unreachable(where, std::strerror(errno));
  if (::connect(connection.fd, found.first->ai_addr, found.first->ai_addrlen) != 0 && errno != EINPROGRESS)
    unreachable(where, std::strerror(errno));
  pollfd ready{connection.fd, POLLOUT, 0};
  if (::poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) != 1)
    unreachable(where, "no answer within 5 s");
  int failure = 0;
  socklen_t bytes = sizeof failure;
  ::getsockopt(connection.fd, SOL_SOCKET, SO_ERROR, &failure, &bytes);
  if (failure != 0) unreachable(where, std::strerror(failure));
  ::fcntl(connection.fd, F_SETFL, 0);
  set_patience(connection.fd);
  return std::exchange(connection.fd, -1);
}

}  // namespace

TcpProbeServer::TcpProbeServer(const std::string& address) : token_(new_token()) {
  Addresses found;
  resolve(address, "0", AI_PASSIVE, found);
  Socket listener(::socket(found.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  if (listener.fd < 0 || ::bind(listener.fd, found.first->ai_addr, found.first->ai_addrlen) != 0 ||
      ::listen(listener.fd, 8) != 0 ||
      ::getsockname(listener.fd, reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) {  // NOLINT: the sockets API
    throw Error(ErrorCode::unavailable, displayable(address), std::string("cannot be bound: ") + std::strerror(errno),
                "give an address that this host has (address=A in the host list)");
  }
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port  // NOLINT
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);  // NOLINT
  listener_ = std::exchange(listener.fd, -1);
  thread_ = std::thread([this] { serve(); });
}

TcpProbeServer::~TcpProbeServer() {
  stop_ = true;
  thread_.join();
  ::close(listener_);
}

void TcpProbeServer::serve() const {
  while (!stop_) {
    pollfd ready{listener_, POLLIN, 0};
    if (::poll(&ready, 1, 100) != 1) continue;
    const Socket visitor(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    if (visitor.fd >= 0) serve_visitor(visitor.fd, token_, stop_);
  }
}

LinkMeasure measure_link(const std::string& address, std::uint16_t port, const std::string& token,
                         std::chrono::milliseconds duration) {
  const auto where = displayable(address) + " port " + std::to_string(port);
  if (token.size() != kTokenDigits)
    throw Error(ErrorCode::usage, "token", "it has " + std::to_string(token.size()) + " characters, not 32");
  const Socket connection(connect_to(address, port));
  char answer = 0;
  if (!send_all(connection.fd, token.data(), token.size()) || !receive_all(connection.fd, &answer, 1))
    unreachable(where, "it did not take the token");
  std::vector<std::chrono::nanoseconds> trips;
  for (int i = 0; i < kRoundTrips; ++i) {
    const auto begin = Clock::now();
    if (!send_all(connection.fd, "p", 1) || !receive_all(connection.fd, &answer, 1))
      unreachable(where, "the connection ended, or stood still for 5 s");
    trips.push_back(Clock::now() - begin);
  }
  std::nth_element(trips.begin(), trips.begin() + kRoundTrips / 2, trips.end());
  const std::vector<char> block(1 << 16);
  const auto begin = Clock::now();
  const auto end = begin + std::min<std::chrono::milliseconds>(duration, 60s);
  do {
    if (!send_all(connection.fd, block.data(), block.size()))
      unreachable(where, "the connection ended, or stood still for 5 s");
  } while (Clock::now() < end);
  set_patience(connection.fd, kLongestVisit);  // a slow link still has full buffers to empty
  ::shutdown(connection.fd, SHUT_WR);
  std::uint64_t count = 0;
  if (!receive_all(connection.fd, &count, sizeof count)) unreachable(where, "it did not say what arrived");
  const std::chrono::duration<double> took = Clock::now() - begin;
  return {trips[kRoundTrips / 2], static_cast<double>(count) / took.count()};
}

}  // namespace troupe
