#include "tensor_io/communicator/gloo/peer_links.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <utility>

#include "tensor_io/communicator/communicator_errors.hpp"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostStrangers = 64;  // that have not said a token yet, at one port; the oldest go first
constexpr int kBacklog = 128;
constexpr std::int64_t kLook_ms = 50;  // for an abort of the rendezvous, while nothing comes

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// A socket on which a token is read, and sent as one write: sixteen bytes fit into an empty buffer.
struct Talk {
  Socket socket;
  LinkToken heard{};
  std::size_t count = 0;

  enum class State { more, whole, gone };
  State hear() {
    const auto n = ::recv(socket.get(), heard.data() + count, heard.size() - count, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? State::more : State::gone;
    if (n == 0) return State::gone;
    count += static_cast<std::size_t>(n);
    return count == heard.size() ? State::whole : State::more;
  }
  bool say(const LinkToken& token) const {
    return ::send(socket.get(), token.data(), token.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(token.size());
  }
};

/// In a time that does not depend on where they differ.
bool equal(const LinkToken& a, const LinkToken& b) {
  unsigned differ = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differ |= static_cast<unsigned>(a[i] ^ b[i]);
  return differ == 0;
}

socklen_t length_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

bool is_exhausted(int code) {
  return code == EMFILE || code == ENFILE || code == ENOMEM || code == ENOBUFS || code == EADDRNOTAVAIL;
}

/// One link on its way.
struct Attempt {
  enum class State { connecting, talking, done };
  PeerLink* link = nullptr;
  State state = State::talking;
  std::deque<Talk> talks;  // the one that dials; or those who came
};

class Connecting {
 public:
  Connecting(std::vector<PeerLink>& links, const CommunicatorOptions& options, const std::string& operation)
      : options_(options), operation_(operation) {
    for (auto& link : links) {
      attempts_.emplace_back().link = &link;
      link.dials ? dial(attempts_.back()) : listen(attempts_.back());
    }
  }

  void until(Clock::time_point deadline) {
    while (std::any_of(attempts_.begin(), attempts_.end(),
                       [](const auto& a) { return a.state != Attempt::State::done; })) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) give_up();
      options_.rendezvous->throw_if_aborted(operation_);  // the peer may have left for that, before it came here
      poll(static_cast<int>(std::min(left, kLook_ms)));
    }
    for (auto& attempt : attempts_) attempt.link->fd = attempt.talks.front().socket.release();
  }

 private:
  void poll(int timeout_ms) {
    std::vector<pollfd> fds;
    const auto add = [&](int fd, bool writing) {
      fds.push_back({fd, static_cast<short>(writing ? POLLOUT : POLLIN), 0});
    };
    for (const auto& attempt : attempts_) {
      if (attempt.state == Attempt::State::done) continue;
      if (!attempt.link->dials) add(attempt.link->listener, false);
      for (const auto& talk : attempt.talks) add(talk.socket.get(), attempt.state == Attempt::State::connecting);
    }
    ::poll(fds.data(), fds.size(), timeout_ms);
    for (auto& attempt : attempts_) {
      if (attempt.state == Attempt::State::done) continue;
      attempt.link->dials ? go_on(attempt) : serve(attempt);
    }
  }

  void dial(Attempt& attempt) {
    attempt.state = Attempt::State::connecting;
    auto& talk = attempt.talks.emplace_back();
    const auto& address = attempt.link->address;
    talk.socket = Socket(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (talk.socket.get() < 0) fail(attempt, errno);
    if (::connect(talk.socket.get(), reinterpret_cast<const sockaddr*>(&address), length_of(address)) != 0 &&
        errno != EINPROGRESS)
      fail(attempt, errno);
  }

  void go_on(Attempt& attempt) {
    auto& talk = attempt.talks.front();
    if (attempt.state == Attempt::State::connecting) {
      pollfd ready{talk.socket.get(), POLLOUT, 0};
      if (::poll(&ready, 1, 0) <= 0) return;
      int code = 0;
      socklen_t length = sizeof code;
      if (::getsockopt(talk.socket.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0 || code != 0) fail(attempt, code);
      if (!talk.say(attempt.link->theirs)) fail(attempt, ECONNRESET);
      attempt.state = Attempt::State::talking;
    }
    const auto heard = talk.hear();
    if (heard == Talk::State::gone) fail(attempt, ECONNRESET);
    if (heard != Talk::State::whole) return;
    if (!equal(talk.heard, attempt.link->mine)) fail(attempt, EPROTO);
    attempt.state = Attempt::State::done;
  }

  void listen(Attempt& attempt) {
    ::listen(attempt.link->listener, kBacklog);  // strangers must not keep the peer out
  }

  void serve(Attempt& attempt) {
    pollfd ready{attempt.link->listener, POLLIN, 0};
    while (::poll(&ready, 1, 0) > 0) {
      Socket socket(::accept4(attempt.link->listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.get() < 0) {
        if (is_exhausted(errno)) fail(attempt, errno);
        break;  // it is gone again
      }
      attempt.talks.emplace_back().socket = std::move(socket);
      if (attempt.talks.size() > kMostStrangers) attempt.talks.pop_front();
    }
    for (auto talk = attempt.talks.begin(); talk != attempt.talks.end();) {
      const auto heard = talk->hear();
      if (heard == Talk::State::whole && equal(talk->heard, attempt.link->mine) && talk->say(attempt.link->theirs)) {
        auto peer = std::move(*talk);
        attempt.talks.clear();
        attempt.talks.push_back(std::move(peer));
        attempt.state = Attempt::State::done;
        return;
      }
      talk = heard == Talk::State::more ? talk + 1 : attempt.talks.erase(talk);
    }
  }

  [[noreturn]] void fail(const Attempt& attempt, int code) const {
    const auto peer = name_ranks(options_, {attempt.link->rank});
    const std::string why = std::strerror(code);
    if (is_exhausted(code)) {
      throw Error(ErrorCode::unavailable, operation_, "no connection to " + peer + ": " + why,
                  "raise the limit of open files (ulimit -n) or of ports (net.ipv4.ip_local_port_range)");
    }
    if (code == ECONNREFUSED || code == ECONNRESET || code == EPROTO)
      throw Error(ErrorCode::peer_lost, operation_, peer + " has closed its port: " + why,
                  "see its log for the reason");
    throw_link_fault({attempt.link->rank}, why);
  }

  [[noreturn]] void give_up() const {
    std::vector<int> silent, absent;
    for (const auto& attempt : attempts_) {
      if (attempt.state == Attempt::State::connecting) silent.push_back(attempt.link->rank);
      if (attempt.state == Attempt::State::talking) absent.push_back(attempt.link->rank);
    }
    if (!silent.empty()) throw_link_fault(silent, "nothing answers");
    throw Error(
        ErrorCode::timeout, operation_,
        name_ranks(options_, absent) + " did not arrive within " + std::to_string(options_.timeout.count()) + " ms",
        "check that every rank is running and no link between two of them is cut");
  }

  [[noreturn]] void throw_link_fault(const std::vector<int>& ranks, const std::string& why) const {
    std::vector<int> names;
    names.reserve(ranks.size());
    for (const int r : ranks)
      names.push_back(options_.members.empty() ? r : options_.members[static_cast<std::size_t>(r)]);
    throw LinkFault(
        {.code = ErrorCode::unavailable,
         .operation = operation_,
         .cause = name_ranks(options_, ranks) + " cannot be reached: " + why,
         .remedy = "check that the hosts reach each other on these addresses, without a firewall between them"},
        names);
  }

  const CommunicatorOptions& options_;
  const std::string& operation_;
  std::deque<Attempt> attempts_;
};

}  // namespace

LinkToken random_link_token() {
  std::random_device random;
  LinkToken token;
  for (auto& byte : token) byte = static_cast<std::uint8_t>(random());
  return token;
}

void connect_links(std::vector<PeerLink>& links, const CommunicatorOptions& options, const std::string& operation,
                   std::chrono::steady_clock::time_point deadline) {
  Connecting(links, options, operation).until(deadline);
}

}  // namespace troupe
