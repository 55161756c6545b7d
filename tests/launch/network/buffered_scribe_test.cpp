#include "launch/network/buffered_scribe.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.hpp"

using namespace troupe;
namespace net = caf::io::network;

namespace {

class Pair {
 public:
  Pair() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()) == 0); }
  ~Pair() { close_far(), ::close(ends_[0]); }
  int near() const { return ends_[0]; }
  int far() const { return ends_[1]; }
  void close_far() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

void write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const auto count = ::write(fd, text.data() + done, text.size() - done);
    if (count <= 0) return;
    done += static_cast<std::size_t>(count);
  }
}

// As CAF's stream: pieces of lengths that it knows one after the other, at most `most` reads where more is announced.
// Returns whether it goes on.
class Reader {
 public:
  Reader(int fd, std::vector<std::size_t> pieces) : fd_(fd), pieces_(std::move(pieces)) {}

  bool handle_event(std::size_t most = 50) {
    const auto lacking = [&] { return pieces_[piece_] - collected_.size(); };
    for (std::size_t reads = 0; piece_ < pieces_.size() && (reads < most || policy_.must_read_more(fd_, lacking()));
         ++reads) {
      std::string part(lacking(), '\0');
      std::size_t count = 0;
      if (policy_.read_some(count, fd_, part.data(), part.size()) != net::rw_state::success) return false;
      if (count == 0) return true;
      collected_.append(part, 0, count);
      if (lacking() == 0) all_ += std::exchange(collected_, {}), ++piece_;
    }
    return true;
  }

  bool done() const { return piece_ == pieces_.size(); }
  const std::string& all() const { return all_; }

 private:
  BufferedReads policy_;
  int fd_;
  std::vector<std::size_t> pieces_;
  std::size_t piece_ = 0;
  std::string collected_, all_;
};

bool announced(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 10'000) == 1;
}

}  // namespace

TEST_CASE("network: pieces of any length come whole and in order, however they were written") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::size_t> pieces;
    std::string sent;
    for (int i = 0; i < 300; ++i) {
      pieces.push_back(i % 50 == 7 ? 60'000 + random() % 200'000 : 1 + random() % 100);
      for (std::size_t k = 0; k < pieces.back(); ++k) sent += static_cast<char>('a' + (sent.size() * 7 + k) % 26);
    }
    Pair sockets;
    std::thread writer([&, far = sockets.far()] {
      for (std::size_t at = 0; at < sent.size();) {
        const auto count = std::min<std::size_t>(sent.size() - at, 1 + random() % 5'000);
        write_all(far, sent.substr(at, count));
        at += count;
      }
    });
    Reader reader(sockets.near(), pieces);
    // It waits for nothing but what the socket announces: what it has read ahead must not be forgotten.
    while (!reader.done() && announced(sockets.near()) && reader.handle_event(1 + seed)) {
    }
    if (!reader.done()) ::shutdown(sockets.near(), SHUT_RDWR);
    writer.join();
    INFO("seed " << seed);
    CHECK(reader.done());
    CHECK(reader.all() == sent);
  }
}

TEST_CASE("network: the kernel is asked once for many pieces") {
  Pair sockets;
  write_all(sockets.far(), std::string(48, 'h') + std::string(10, 'p') + std::string(48, 'h'));
  BufferedReads policy;
  std::string piece(48, '\0');
  std::size_t count = 0;
  REQUIRE(policy.read_some(count, sockets.near(), piece.data(), 48) == net::rw_state::success);
  CHECK(count == 48);
  CHECK_FALSE(::recv(sockets.near(), piece.data(), 1, MSG_DONTWAIT | MSG_PEEK) > 0);  // all of it was taken
  CHECK(policy.must_read_more(sockets.near(), 58));
  CHECK_FALSE(policy.must_read_more(sockets.near(), 59));
  REQUIRE(policy.read_some(count, sockets.near(), piece.data(), 10) == net::rw_state::success);
  CHECK(count == 10);
  REQUIRE(policy.read_some(count, sockets.near(), piece.data(), 48) == net::rw_state::success);
  CHECK(count == 48);
  CHECK(piece == std::string(48, 'h'));
  // What has come meanwhile waits for its announcement: no call of the kernel tells that there is nothing else.
  write_all(sockets.far(), "later");
  REQUIRE(policy.read_some(count, sockets.near(), piece.data(), 48) == net::rw_state::success);
  CHECK(count == 0);
  REQUIRE(policy.read_some(count, sockets.near(), piece.data(), 48) == net::rw_state::success);
  CHECK(count == 5);
}

TEST_CASE("network: the end of a stream is a failure, after all that came before it") {
  Pair sockets;
  write_all(sockets.far(), "last");
  sockets.close_far();
  Reader whole(sockets.near(), {4, 1});
  CHECK(whole.handle_event());
  CHECK(whole.all() == "last");
  CHECK_FALSE(whole.handle_event());
}
