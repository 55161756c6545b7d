#include "launch/network/buffered_scribe.hpp"

#include <sys/socket.h>
#include <caf/io/network/default_multiplexer.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe {
namespace {

namespace net = caf::io::network;

constexpr std::size_t kBufferBytes = 64 * 1024;

// As CAF's: nothing there is a success of no bytes, the end of the stream and an error are failures.
net::rw_state receive(std::size_t& result, int fd, void* to, std::size_t bytes) {
  const auto got = ::recv(fd, to, bytes, MSG_DONTWAIT);
  result = got > 0 ? static_cast<std::size_t>(got) : 0;
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)))
    return net::rw_state::success;
  return net::rw_state::failure;
}

}  // namespace

net::rw_state BufferedReads::read_some(std::size_t& result, int fd, void* to, std::size_t bytes) {
  result = 0;
  if (bytes == 0) return net::rw_state::indeterminate;
  if (begin_ == end_) {
    // The multiplexer comes again where more has arrived meanwhile: it is told as long as something is there, not once.
    if (std::exchange(drained_, false)) return net::rw_state::success;
    if (bytes >= kBufferBytes) return receive(result, fd, to, bytes);
    buffer_.resize(kBufferBytes);
    begin_ = end_ = 0;
    if (const auto state = receive(end_, fd, buffer_.data(), kBufferBytes);
        state != net::rw_state::success || end_ == 0)
      return state;
    drained_ = end_ < kBufferBytes;
  }
  result = std::min(bytes, end_ - begin_);
  std::memcpy(to, buffer_.data() + begin_, result);
  begin_ += result;
  return net::rw_state::success;
}

BufferedScribe::BufferedScribe(net::default_multiplexer& multiplexer, int fd)
    : scribe(net::conn_hdl_from_socket(fd)), stream_(multiplexer, fd) {}

void BufferedScribe::configure_read(caf::io::receive_policy::config config) {
  stream_.configure_read(config);
  if (!std::exchange(started_, true)) stream_.start(this);
}

void BufferedScribe::graceful_shutdown() {
  stream_.graceful_shutdown();
  detach(&stream_.backend(), false);
}

std::string BufferedScribe::addr() const {
  const auto found = net::remote_addr_of_fd(static_cast<int>(hdl().id()));
  return found ? *found : std::string();
}

std::uint16_t BufferedScribe::port() const {
  const auto found = net::remote_port_of_fd(static_cast<int>(hdl().id()));
  return found ? *found : std::uint16_t{0};
}

}  // namespace troupe
