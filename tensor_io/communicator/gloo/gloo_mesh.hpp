#pragma once
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// One TCP connection between every two ranks of a group, on Gloo's transport: messages are matched by slot, a number
/// that both sides compute. A slot carries the fingerprint of the operation, so ranks that disagree never match: they
/// wait, and nothing is written.
///
/// Gloo shows the end of a connection only to a rank with a transfer under way on it. So a rank that waits for one peer
/// would not see another one die. Each mesh therefore listens for a farewell of every peer all the time. A connection
/// that ends without one means a failure, and frees all waits. One thread, but for `sever`.
class GlooMesh {
 public:
  /// Under way until it was waited for. Empty for no bytes. Dropping it is safe at any time: later data is not
  /// written.
  using Transfer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  /// Collective. Throws Error(timeout) or Error(unavailable) that name the ranks that did not come or cannot be
  /// reached.
  explicit GlooMesh(const CommunicatorOptions& options);
  ~GlooMesh();

  // These throw gloo::Exception if a connection is gone, also after `sever`.
  Transfer send(const void* data, std::int64_t bytes, int to, std::uint64_t slot);
  Transfer recv(void* data, std::int64_t bytes, int from, std::uint64_t slot);
  void wait_sent(const Transfer& transfer);
  void wait_received(const Transfer& transfer);

  /// Frees the waits here, and ends every connection without a farewell, which frees the others. Any thread.
  void sever() noexcept;

 private:
  template <class Wait>
  void wait(const Transfer& transfer, Wait&& wait_for_it);
  void listen();
  void say_farewell() noexcept;
  void free_waiter() noexcept;

  std::chrono::milliseconds timeout_;
  std::shared_ptr<gloo::transport::Context> context_;

  std::mutex mutex_;
  bool failed_ = false;                               // guarded by mutex_: a connection ended
  bool severed_ = false;                              // guarded by mutex_
  gloo::transport::UnboundBuffer* waited_ = nullptr;  // guarded by mutex_: the wait of the group's thread

  std::vector<char> farewells_;  // one byte of each rank
  Transfer farewell_;            // receives into farewells_
  std::thread listener_;
};

}  // namespace troupe
