#pragma once
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "launch/network/asio.hpp"
#include "launch/network/frame_check.hpp"

namespace troupe {

/// Carries bytes between a peer's connection (`Stream`: TCP, or TLS over it) and a local socket whose other end CAF
/// has, until either side ends, or a frame comes that CAF would not survive. Holds at most 16 KiB for each direction.
/// The thread of its io_context.
template <class Stream>
class Passage : public std::enable_shared_from_this<Passage<Stream>> {
 public:
  using Inside = asio::local::stream_protocol::socket;
  struct Events {
    /// The peer's handshake with CAF, by the name of its node. Returns why it may not go on; null: it may.
    std::function<const char*(const std::string& node)> greeted;
    std::function<void(const char* why)> ended;  ///< once; null: one side closed its connection
  };

  /// `deadline` for the peer's handshake with CAF.
  Passage(Stream outside, Inside inside, FrameCheck check, std::chrono::steady_clock::time_point deadline,
          Events events)
      : outside_(std::move(outside)),
        inside_(std::move(inside)),
        check_(std::move(check)),
        timer_(inside_.get_executor()),
        events_(std::move(events)) {
    timer_.expires_at(deadline);
  }

  void start() {
    timer_.async_wait([self = this->shared_from_this()](const std::error_code& cancelled) {
      if (!cancelled) self->end("too slow");
    });
    read_outside();
    read_inside();
  }

  void end(const char* why = nullptr) {
    if (over_) return;
    over_ = true;
    std::error_code ignored;
    timer_.cancel();
    outside_.lowest_layer().close(ignored);
    inside_.close(ignored);
    if (events_.ended) events_.ended(why);
    events_ = {};
  }

 private:
  // CAF is done: its last data still arrives, and unread bytes here do not reset the connection before that (RFC 1122,
  // 4.2.2.13).
  void drain() {
    std::error_code failure;
    draining_ = true;
    outside_.lowest_layer().shutdown(asio::ip::tcp::socket::shutdown_send, failure);
    if (failure) return end();
    timer_.expires_after(std::chrono::seconds(1));
    timer_.async_wait([self = this->shared_from_this()](const std::error_code& cancelled) {
      if (!cancelled) self->end();
    });
  }

  void read_outside() {
    outside_.async_read_some(
        asio::buffer(incoming_), [self = this->shared_from_this()](const std::error_code& failure, std::size_t n) {
          if (failure) return self->end();
          if (self->draining_) return self->read_outside();
          if (const char* wrong = self->check_.take(std::as_bytes(std::span(self->incoming_.data(), n))))
            return self->end(wrong);
          if (!self->greeted_ && self->check_.greeted()) {
            self->greeted_ = true;
            self->timer_.cancel();
            const auto* wrong = self->events_.greeted ? self->events_.greeted(self->check_.node()) : nullptr;
            if (wrong != nullptr) return self->end(wrong);
          }
          asio::async_write(self->inside_, asio::buffer(self->incoming_, n),
                            [self](const std::error_code& unwritten, std::size_t) {
                              if (unwritten && !self->draining_) return self->end();
                              self->read_outside();
                            });
        });
  }

  void read_inside() {
    inside_.async_read_some(asio::buffer(outgoing_),
                            [self = this->shared_from_this()](const std::error_code& failure, std::size_t n) {
                              if (self->over_) return;
                              if (failure) return self->drain();
                              asio::async_write(self->outside_, asio::buffer(self->outgoing_, n),
                                                [self](const std::error_code& unwritten, std::size_t) {
                                                  if (unwritten) return self->end();
                                                  self->read_inside();
                                                });
                            });
  }

  Stream outside_;
  Inside inside_;
  FrameCheck check_;
  asio::steady_timer timer_;
  Events events_;
  bool greeted_ = false, over_ = false, draining_ = false;
  std::array<char, 16 << 10> incoming_, outgoing_;
};

}  // namespace troupe
