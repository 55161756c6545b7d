#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// Buffers for whole gradients on their way from autograd to the reducer. Two go round, so that a model's gradients
/// never are in memory all at once.
///
/// A gradient has a turn: its place in the order in which the reducer takes a step's gradients, from 0. All ranks have
/// the same order, and the buffer of a turn is the same one on all of them. NCCL wants that of registered memory: a
/// rank that passes other memory than the others makes them wait in their launch for ever
/// (`ncclNvlsLocalRegisterBuffer` of 2.28.9), and a pair of buffers that has not met before is registered anew.
///
/// `take` waits while the reducer has the turn's buffer and is sure to give it back. In all other cases it makes an
/// extra buffer, so that no order of units can lock up. A wait that lasts too long is the last one: the others wait for
/// this rank meanwhile, in a collective of the model's backward or in the gather of a unit. On a device the reducer
/// copies an extra one to the turn's buffer. Extra buffers are kept and reused. Compute's thread takes, the reducer's
/// gives back.
///
/// On a device a buffer is given back when its reduction is launched; the taker's current stream waits for the end of
/// that.
class GradientRing {
 public:
  /// Collective: the two buffers of `numel` from the communicator.
  GradientRing(Communicator& communicator, std::int64_t numel, at::ScalarType dtype);

  /// (numel,) with numel at most that of the buffers. `may_wait`: the reducer is free to give back the buffers that it
  /// has.
  at::Tensor take(std::int64_t turn, std::int64_t numel, bool may_wait);
  /// Gives it to the reducer, which will give it back.
  void hand_over(const at::Tensor& buffer);
  /// For the reducer, turn by turn: where all ranks have what `buffer` holds. On the CPU that is `buffer` itself.
  at::Tensor in_turn(const at::Tensor& buffer);
  void give_back(const at::Tensor& buffer);
  /// The reducer failed: ends all waits.
  void break_up();
  /// A new step: all buffers are free, and the turns begin at 0.
  void reset();

  ~GradientRing();
  GradientRing(const GradientRing&) = delete;
  GradientRing& operator=(const GradientRing&) = delete;

  std::int64_t bytes() const;  ///< of all
  bool waited_in_vain() const;

 private:
  enum class Use { free, filling, reducing };
  struct Buffer {
    at::Tensor memory;
    Use use;
    DeviceEvent reduced;
    std::int64_t turn;  // that it serves now, or, of the two, will serve next
  };
  Buffer& of_turn(std::int64_t turn) { return buffers_[static_cast<std::size_t>(turn % kBuffers)]; }
  bool can_be_waited_for(const Buffer& buffer, std::int64_t turn) const;
  Buffer& extra();
  Buffer& buffer_of(const at::Tensor& memory);

  static constexpr int kBuffers = 2;  // that go round; extra ones lie behind them
  const std::int64_t numel_;
  mutable std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<Buffer> buffers_;
  bool broken_ = false, waited_in_vain_ = false;
};

}  // namespace troupe
