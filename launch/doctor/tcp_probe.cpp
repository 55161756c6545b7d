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
#include <cstring>
#include <list>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/network/job_keys.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/local_address.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPatience = 5s;       // for a connection, and for each answer
constexpr auto kLongestVisit = 90s;  // a whole measurement
constexpr std::size_t kTokenDigits = 32;
constexpr std::size_t kRoundTrips = 51;
constexpr std::size_t kVisitors = 64;

struct Socket {
  int fd = -1;
  explicit Socket(int given) : fd(given) {}
  ~Socket() {
    if (fd >= 0) ::close(fd);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
};

Addresses resolve(const std::string& address, const std::string& port, int flags) {
  int failure = 0;
  auto found = look_up(address, port.c_str(), AF_UNSPEC, flags | AI_NUMERICSERV, failure);
  if (!found)
    throw Error(ErrorCode::unavailable, displayable(address), ::gai_strerror(failure),
                "give its IP address (address=A in the host list)");
  return found;
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

// A visitor as the server sees it: the token, then pings, which are sent back, then data until the other side ends its
// direction. The answer to these is how many bytes came. Nothing here waits for the visitor.
class Visitor {
 public:
  explicit Visitor(int fd) : connection_(fd) {}
  int fd() const noexcept { return connection_.fd; }
  bool has_token() const noexcept { return said_.size() == kTokenDigits; }
  bool is_late(Clock::time_point now) const { return now > begun_ + (has_token() ? kLongestVisit : kPatience); }

  // Reads what has come, through `block`. False: the visit is over.
  bool read(std::string_view token, std::vector<char>& block) {
    const auto n = ::recv(fd(), block.data(), block.size(), 0);
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    if (n == 0) {
      if (pings_ == kRoundTrips) send_all(fd(), &count_, sizeof count_);
      return false;
    }
    std::string_view came(block.data(), static_cast<std::size_t>(n));
    const auto take = [&](std::size_t most) {
      const auto taken = came.substr(0, most);
      came.remove_prefix(taken.size());
      return taken;
    };
    if (!has_token()) {
      said_ += take(kTokenDigits - said_.size());
      if (has_token() && (!equal_secrets(said_, token) || !send_all(fd(), "k", 1))) return false;
    }
    const auto pings = take(kRoundTrips - pings_);
    pings_ += pings.size();
    count_ += came.size();
    return send_all(fd(), pings.data(), pings.size());
  }

 private:
  const Socket connection_;
  const Clock::time_point begun_ = Clock::now();
  std::string said_;
  std::size_t pings_ = 0;
  std::uint64_t count_ = 0;
};

[[noreturn]] void unreachable(const std::string& where, const std::string& cause) {
  throw Error(ErrorCode::unavailable, where, cause,
              "let the hosts of a job reach each other on all ports (firewall, routes, address=A)");
}

int connect_to(const std::string& address, std::uint16_t port) {
  const auto found = resolve(address, std::to_string(port), 0);
  const auto where = displayable(address) + " port " + std::to_string(port);
  Socket connection(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connection.fd < 0) unreachable(where, std::strerror(errno));
  if (::connect(connection.fd, found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS)
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

TcpProbeServer::TcpProbeServer(const std::string& address) : token_(random_token().substr(0, kTokenDigits)) {
  const auto found = resolve(address, "0", AI_PASSIVE);
  Socket listener(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  if (listener.fd < 0 || ::bind(listener.fd, found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(listener.fd, SOMAXCONN) != 0 ||
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
  std::list<Visitor> visitors;  // the oldest first
  std::vector<char> block(1 << 18);
  const auto make_place = [&] {
    if (visitors.size() < kVisitors) return true;
    const auto oldest = std::find_if(visitors.begin(), visitors.end(), [](const auto& v) { return !v.has_token(); });
    if (oldest == visitors.end()) return false;
    visitors.erase(oldest);
    return true;
  };
  while (!stop_) {
    std::vector<pollfd> ready{{listener_, POLLIN, 0}};
    for (const auto& visitor : visitors) ready.push_back({visitor.fd(), POLLIN, 0});
    if (::poll(ready.data(), ready.size(), 100) < 0) continue;
    auto event = ready.begin() + 1;
    const auto now = Clock::now();
    for (auto visitor = visitors.begin(); visitor != visitors.end(); ++event) {
      const bool stays = !visitor->is_late(now) && (event->revents == 0 || visitor->read(token_, block));
      visitor = stays ? std::next(visitor) : visitors.erase(visitor);
    }
    if (ready.front().revents == 0) continue;
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) continue;
    if (!make_place()) {
      ::close(fd);
      continue;
    }
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    visitors.emplace_back(fd);
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
    unreachable(where, "it did not accept the token");
  std::vector<std::chrono::nanoseconds> trips;
  for (std::size_t i = 0; i < kRoundTrips; ++i) {
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
  if (!receive_all(connection.fd, &count, sizeof count)) unreachable(where, "it did not report what arrived");
  const std::chrono::duration<double> took = Clock::now() - begin;
  return {trips[kRoundTrips / 2], static_cast<double>(count) / took.count()};
}

}  // namespace troupe
