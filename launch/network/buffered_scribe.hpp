#pragma once
#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <caf/io/network/stream_impl.hpp>
#include <caf/policy/tcp.hpp>

#include <memory>
#include <vector>

namespace troupe {

/// Reads the present data of a stream socket, up to 64 KiB at once, and hands it out in CAF's pieces. CAF wants each
/// message's head, then its payload, and would call the kernel for each, and once more to learn that there is no more.
/// For caf::stream_impl. The multiplexer's thread.
class BufferedReads {
 public:
  caf::io::network::rw_state read_some(std::size_t& result, int fd, void* to, std::size_t bytes);
  caf::io::network::rw_state write_some(std::size_t& result, int fd, const void* from, std::size_t bytes) {
    return caf::policy::tcp::write_some(result, fd, from, bytes);
  }
  /// For data that the socket does not announce again: CAF goes on reading if the `bytes` of the next piece are here.
  bool must_read_more(int, std::size_t bytes) const noexcept { return end_ - begin_ >= bytes; }

 private:
  std::vector<char> buffer_;  // from the first read on
  std::size_t begin_ = 0, end_ = 0;
  bool drained_ = false;  // the last read filled less than its room
};

/// A connection of CAF's broker that reads in this way; otherwise as CAF's own scribe_impl. Owns `fd`.
class BufferedScribe : public caf::io::scribe {
 public:
  BufferedScribe(caf::io::network::default_multiplexer& multiplexer, int fd);

  void configure_read(caf::io::receive_policy::config config) override;
  void ack_writes(bool enable) override { stream_.ack_writes(enable); }
  std::vector<char>& wr_buf() override { return stream_.wr_buf(); }
  std::vector<char>& rd_buf() override { return stream_.rd_buf(); }
  void flush() override { stream_.flush(this); }
  std::string addr() const override;
  std::uint16_t port() const override;
  void graceful_shutdown() override;
  void add_to_loop() override { stream_.activate(this); }
  void remove_from_loop() override { stream_.passivate(); }

 private:
  bool started_ = false;
  caf::io::network::stream_impl<BufferedReads> stream_;
};

}  // namespace troupe
