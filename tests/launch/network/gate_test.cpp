#include "launch/network/gate.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "launch/network/frame_check.hpp"
#include "launch/network/secure_link.hpp"
#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/logged_lines.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

std::string frame(unsigned operation, std::uint32_t length, const std::string& payload = {}) {
  std::string text(32, '\0');
  text[0] = static_cast<char>(operation);
  for (std::size_t i = 0; i < 4; ++i) text[4 + i] = static_cast<char>(length >> (24 - 8 * i) & 255u);
  return text + payload;
}

std::string greeting(const std::string& node = "hello") {
  return frame(1, static_cast<std::uint32_t>(node.size()), node);
}

// A message to an actor, as CAF writes it: no stages, the names of its parts, its content.
std::string message(const std::string& names, const std::string& content = {}) {
  const auto payload = std::string(3, '\0') + static_cast<char>(names.size()) + names + content;
  return frame(2, static_cast<std::uint32_t>(payload.size()), payload);
}

const std::vector<std::string> kMessages{"@<>+Told", "@<>+Asked"};

const char* judged(FrameCheck& check, const std::string& bytes, std::size_t at_once) {
  for (std::size_t at = 0; at < bytes.size(); at += at_once) {
    if (const char* wrong =
            check.take(std::as_bytes(std::span(bytes).subspan(at, std::min(at_once, bytes.size() - at)))))
      return wrong;
  }
  return nullptr;
}

// Where CAF would be: a local socket that takes whatever the gate lets in.
class Inside {
 public:
  Inside() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) == 0);
    REQUIRE(::listen(listener_, 16) == 0);
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    name_.assign(address.sun_path, size - offsetof(sockaddr_un, sun_path));
    timeval patience{10, 0};
    ::setsockopt(listener_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~Inside() { ::close(listener_); }
  const std::string& name() const { return name_; }
  int accept() const { return ::accept(listener_, nullptr, nullptr); }
  bool nobody() const {
    return ::recv(listener_, nullptr, 0, MSG_DONTWAIT) < 0 && ::accept4(quiet(), nullptr, nullptr, 0) < 0;
  }

 private:
  int quiet() const {
    timeval none{0, 1000};
    ::setsockopt(listener_, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    return listener_;
  }
  int listener_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
  std::string name_;
};

// A gate, its thread, and what is behind it.
struct GateWorld {
  explicit GateWorld(std::optional<JobKeys> keys, std::chrono::milliseconds patience = 5s,
                     std::size_t waiting_per_address = 64, std::optional<uid_t> owner = {}) {
    GateOptions options;
    options.owner = owner;
    options.keys = std::move(keys);
    options.inside = inside.name();
    options.patience = patience;
    options.waiting_per_address = waiting_per_address;
    options.messages = kMessages;
    options.log = [this](const std::string& line) { lines.add(line); };
    gate.emplace(io, options);
  }
  ~GateWorld() { end(); }
  void end() {
    if (!gate) return;
    gate.reset();
    work.reset();
    thread.join();
  }

  Inside inside;
  testing::LoggedLines lines;
  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  std::optional<Gate> gate;
  std::thread thread{[this] { io.run(); }};
};

int plain_connection(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  timeval patience{10, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return fd;
}

void send_all(int fd, const std::string& bytes) { (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

std::string receive(int fd, std::size_t n) {
  std::string text(n, '\0');
  const auto got = ::recv(fd, text.data(), n, MSG_WAITALL);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

// The other side ends the connection, rather than a timeout.
bool ends(int fd) {
  char byte = 0;
  ssize_t n = 0;
  while ((n = ::recv(fd, &byte, 1, 0)) > 0) {
  }
  return n == 0 || errno == ECONNRESET;
}

std::string link_failure(GateWorld& world, const JobKeys& keys) {
  try {
    ::close(open_secure_link(world.io, keys, "127.0.0.1", world.gate->port(), 5s).get());
    return "";
  } catch (const Error& error) {
    return error.report().cause;
  }
}

}  // namespace

TEST_CASE("[L08] frames that CAF does not survive are seen however they are cut") {
  const std::string good = greeting() + frame(6, 0) + message("@<>+Told", "abc") + greeting() + frame(4, 7, "hellous") +
                           frame(5, 6, "hello!") + message("@<>+Asked", std::string(1000, 'x')) + frame(6, 0);
  for (std::size_t at_once = 1; at_once <= good.size(); ++at_once) {
    FrameCheck check(FrameCheck::From::client, kMessages);
    CHECK(judged(check, good, at_once) == nullptr);
    CHECK(check.greeted());
    CHECK(check.node() == "hello");
  }
  struct Case {
    std::string bytes;
    const char* why;
  };
  const std::vector<Case> cases{{frame(0, 0), "the first frame is not a handshake"},
                                {frame(1, 0), "a frame with the wrong length"},
                                {frame(2, 3, "abc"), "the first frame is not a handshake"},
                                {frame(7, 1), "no such operation in a frame"},
                                {frame(255, 1), "no such operation in a frame"},
                                {frame(1, 257), "a handshake that is too long"},
                                {frame(1, ~0u), "a handshake that is too long"},
                                {greeting() + greeting() + frame(1, 0), "a frame with the wrong length"},
                                {greeting() + frame(0, 9), "a server's handshake"},
                                {greeting() + frame(2, 0), "a frame with the wrong length"},
                                {greeting() + frame(4, 0), "a frame with the wrong length"},
                                {greeting() + frame(6, 1), "a frame with the wrong length"},
                                {greeting() + frame(2, 1u << 31), "a frame that is too long"},
                                {greeting() + frame(2, FrameCheck::kLongestPayload + 1), "a frame that is too long"}};
  for (const auto& bad : cases) {
    for (const std::size_t at_once : {1, 7, 32, 1000}) {
      FrameCheck check(FrameCheck::From::client);
      const char* found = judged(check, bad.bytes, at_once);
      REQUIRE(found != nullptr);
      CHECK(std::string(found) == bad.why);
    }
  }
  // What CAF would believe.
  const std::vector<Case> lies{
      {greeting() + frame(3, 10, "helloworld"), "a frame for another process"},
      {greeting() + greeting("other"), "a second name"},
      {greeting() + greeting("hell"), "a second name"},
      {greeting() + frame(4, 10, "otherhello"), "a frame in another's name"},
      {greeting() + frame(5, 10, "otherhello"), "a frame in another's name"},
      {greeting() + frame(5, 4, "hell"), "a frame in another's name"},
      {greeting() + message("@<>+@exit", "kill"), "a message that no process of a job sends"},
      {greeting() + message("@<>+@down"), "a message that no process of a job sends"},
      {greeting() + message("@<>+Told+Told"), "a message that no process of a job sends"},
      {greeting() + message("@<>+Tol"), "a message that no process of a job sends"},
      {greeting() + message(""), "a message that no process of a job sends"},
      {greeting() + frame(2, 2, std::string(2, '\0')), "a message that no process of a job sends"},
      {greeting() + frame(2, 13, std::string("\1\0\0\10@<>+Told", 12) + "x"),
       "a message that no process of a job sends"}};
  for (const auto& lie : lies) {
    for (const std::size_t at_once : {1, 7, 32, 1000}) {
      INFO(lie.why);
      FrameCheck check(FrameCheck::From::client, kMessages);
      const char* found = judged(check, lie.bytes, at_once);
      REQUIRE(found != nullptr);
      CHECK(std::string(found) == lie.why);
    }
  }
  FrameCheck server(FrameCheck::From::server);
  CHECK(judged(server, frame(0, 5, "hello"), 3) == nullptr);
  FrameCheck other(FrameCheck::From::server);
  CHECK(judged(other, greeting(), 3) != nullptr);
}

TEST_CASE("[L08] the gate lets the job's own in, and carries bytes both ways") {
  const KeyMaker job;
  GateWorld world(job.keys_for("coordinator"));
  const int outside = open_secure_link(world.io, job.keys_for("rank"), "127.0.0.1", world.gate->port(), 5s).get();
  const int inside = world.inside.accept();
  REQUIRE(inside >= 0);
  send_all(inside, frame(0, 5, "hello"));
  CHECK(receive(outside, 37) == frame(0, 5, "hello"));
  send_all(outside, greeting());
  CHECK(receive(inside, 37) == greeting());
  // More than any buffer on the way holds, in both directions at once.
  const std::string much(5 << 20, 'm');
  const auto sent = std::async(std::launch::async, [&] { send_all(outside, message("@<>+Told", much)); });
  const auto back = std::async(std::launch::async,
                               [&] { send_all(inside, frame(2, static_cast<std::uint32_t>(much.size()), much)); });
  const auto theirs = std::async(std::launch::async, [&] { return receive(outside, 32 + much.size()); });
  CHECK((receive(inside, 44 + much.size()) == message("@<>+Told", much)));
  CHECK((const_cast<std::future<std::string>&>(theirs).get().substr(32) == much));
  // The last words before an end arrive.
  send_all(inside, frame(6, 0));
  ::close(inside);
  CHECK(receive(outside, 32) == frame(6, 0));
  CHECK(ends(outside));
  ::close(outside);
  world.end();
  CHECK(world.lines.last().empty());
}

TEST_CASE("[L08] patience is for handshakes: a connection may be silent afterwards, on both sides") {
  const KeyMaker job;
  GateWorld world(job.keys_for("coordinator"), 300ms);
  const int outside = open_secure_link(world.io, job.keys_for("rank"), "127.0.0.1", world.gate->port(), 300ms).get();
  const int inside = world.inside.accept();
  send_all(inside, frame(0, 5, "hello"));
  send_all(outside, greeting());
  CHECK(receive(outside, 37).size() == 37);
  CHECK(receive(inside, 37).size() == 37);
  std::this_thread::sleep_for(700ms);
  send_all(inside, frame(6, 0));
  send_all(outside, frame(6, 0));
  CHECK(receive(outside, 32) == frame(6, 0));
  CHECK(receive(inside, 32) == frame(6, 0));
  ::close(inside);
  ::close(outside);
  world.end();
  CHECK(world.lines.all().empty());
}

TEST_CASE("[L08] the gate refuses strangers, says why, and counts them") {
  const KeyMaker job, other;
  const auto ours = job.keys_for("rank"), theirs = other.keys_for("rank");
  GateWorld world(job.keys_for("coordinator"), 300ms);
  const auto port = world.gate->port();
  const std::vector<std::string> shouts{frame(0, 0), frame(1, 0), "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                                        std::string(4096, '\xff'), "\n\n\n\n\n"};
  for (const auto& shout : shouts) {
    const int fd = plain_connection(port);
    send_all(fd, shout);
    CHECK(ends(fd));
    ::close(fd);
  }
  CHECK(world.lines.wait_for("no TLS 1.3"));
  const int silent = plain_connection(port);
  CHECK(ends(silent));
  ::close(silent);
  CHECK(world.lines.wait_for("127.0.0.1 was refused: too slow"));

  CHECK(link_failure(world, theirs) == kOtherKeys);
  // The right authority to trust, and a certificate of another's.
  CHECK(link_failure(world, {ours.authority, theirs.certificate, theirs.key, ours.token})
            .find("does not accept our keys") != std::string::npos);
  INFO(world.lines.all());
  CHECK(world.lines.wait_for("a certificate that is not the job's"));
  // A certificate of the job's with another token: stolen, or a job's before.
  CHECK(link_failure(world, {ours.authority, ours.certificate, ours.key, theirs.token})
            .find("does not accept our keys") != std::string::npos);
  CHECK(world.lines.wait_for("a wrong token"));
  CHECK(world.inside.nobody());

  CHECK(link_failure(world, ours).empty());
  world.end();
  CHECK(world.lines.last().find("connections were refused: ") != std::string::npos);
}

TEST_CASE("[K03] keys open the gate of their job at any age, and by a clock that was set back") {
  const KeyMaker job;
  const auto now = std::time(nullptr);
  const auto age = GENERATE(0, 8 * 24 * 3600, 400 * 24 * 3600, -2 * 3600, -30 * 24 * 3600);
  GateWorld world(job.keys_for("coordinator", now - age));
  CHECK(link_failure(world, job.keys_for("rank", now - age)).empty());
  CHECK(link_failure(world, job.keys_for("rank")).empty());
}

TEST_CASE("[L08] a peer with keys that sends what CAF does not survive is cut off before CAF sees it") {
  const KeyMaker job;
  GateWorld world(job.keys_for("coordinator"));
  for (const auto& bytes : {frame(0, 0), frame(1, 0), frame(1, ~0u), greeting() + frame(2, 1u << 31)}) {
    const int outside = open_secure_link(world.io, job.keys_for("rank"), "127.0.0.1", world.gate->port(), 5s).get();
    const int inside = world.inside.accept();
    send_all(outside, bytes);
    CHECK(ends(outside));
    const auto seen = receive(inside, 100);
    CHECK((seen.empty() || seen == greeting()));
    ::close(outside);
    ::close(inside);
  }
  CHECK(world.lines.wait_for("a frame that is too long"));
}

TEST_CASE("[K01] a process goes by its own name: that of another one that is here is refused") {
  const KeyMaker job;
  GateWorld world(job.keys_for("coordinator"));
  const auto keys = job.keys_for("a"), others = job.keys_for("b");
  const auto connect = [&](const JobKeys& with) {
    return open_secure_link(world.io, with, "127.0.0.1", world.gate->port(), 5s).get();
  };
  const int first = connect(keys);
  send_all(first, greeting("node a"));
  const int first_inside = world.inside.accept();
  CHECK(receive(first_inside, 38) == greeting("node a"));
  const int liar = connect(others);
  send_all(liar, greeting("node a"));
  CHECK(ends(liar));
  CHECK(world.lines.wait_for("the name of another process that is connected"));
  const int liar_inside = world.inside.accept();
  CHECK(receive(liar_inside, 1).empty());  // CAF has not seen a byte of it
  // The process itself may come again before its first connection is known to be broken, and later others may.
  const int again = connect(keys);
  send_all(again, greeting("node a"));
  const int again_inside = world.inside.accept();
  CHECK(receive(again_inside, 38) == greeting("node a"));
  for (const int fd : {first, liar, liar_inside}) ::close(fd);
  CHECK(receive(first_inside, 1).empty());
  ::close(first_inside), ::close(again);
  CHECK(receive(again_inside, 1).empty());
  ::close(again_inside);
  const int later = connect(others);
  send_all(later, greeting("node a"));
  const int later_inside = world.inside.accept();
  CHECK(receive(later_inside, 38) == greeting("node a"));
  ::close(later), ::close(later_inside);
}

TEST_CASE("[L08] silent peers hold no more than their places, and keep nobody out") {
  const KeyMaker job;
  GateWorld world(job.keys_for("coordinator"), 60s, 8);
  std::vector<int> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(plain_connection(world.gate->port()));
  // 32 of them had to make place, long before their minute is over.
  for (int i = 0; i < 32; ++i) CHECK(ends(silent[static_cast<std::size_t>(i)]));
  CHECK(world.lines.wait_for("too many at once (32 so far)"));
  CHECK(link_failure(world, job.keys_for("rank")).empty());
  for (const int fd : silent) ::close(fd);
}

TEST_CASE("[K01] without keys the gate of one machine lets in its own user's processes alone") {
  const bool ours = GENERATE(true, false);
  GateWorld world(std::nullopt, 5s, 64, ours ? ::geteuid() : ::geteuid() + 1);
  const int fd = plain_connection(world.gate->port());
  send_all(fd, greeting());
  if (ours) {
    const int inside = world.inside.accept();
    CHECK(receive(inside, greeting().size()) == greeting());
    ::close(inside);
  } else {
    CHECK(ends(fd));
    CHECK(world.lines.wait_for("a process of another user"));
    CHECK(world.inside.nobody());
  }
  ::close(fd);
}

TEST_CASE("[L08] without keys the gate checks frames, and wants a handshake in time") {
  GateWorld world(std::nullopt, 300ms);
  const int bad = plain_connection(world.gate->port());
  send_all(bad, frame(1, 0));
  CHECK(ends(bad));
  const int silent = plain_connection(world.gate->port());
  CHECK(ends(silent));
  const int good = plain_connection(world.gate->port());
  send_all(good, greeting());
  int inside = -1;
  std::string seen;
  for (int i = 0; i < 3 && seen != greeting(); ++i) {
    if (inside >= 0) ::close(inside);
    inside = world.inside.accept();
    seen = receive(inside, 37);
  }
  CHECK(seen == greeting());
  // The handshake is through: it may be silent for as long as it likes.
  std::this_thread::sleep_for(500ms);
  send_all(good, frame(6, 0));
  CHECK(receive(inside, 32) == frame(6, 0));
  for (const int fd : {bad, silent, good, inside}) ::close(fd);
}
