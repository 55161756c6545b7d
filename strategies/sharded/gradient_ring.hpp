#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// Buffers for whole gradients on their way from autograd to the reducer. A few go round, so that a model's gradients
/// never are in memory all at once.
///
/// `take` waits while the reducer has a buffer and is sure to give it back. In all other cases it makes an extra
/// buffer, so that no order of units can lock up. Extra buffers are kept and reused. Compute's thread takes, the
/// reducer's gives back.
///
/// On a device a buffer is given back when its reduction is launched; the taker's current stream waits for the end of
/// that.
class GradientRing {
 public:
  /// Collective: the few buffers of `numel` from the communicator.
  GradientRing(Communicator& communicator, std::int64_t numel, at::ScalarType dtype);

  /// (numel,) with numel at most that of the buffers. `may_wait`: the reducer is free to give back the buffers that it
  /// has.
  at::Tensor take(std::int64_t numel, bool may_wait);
  /// Gives it to the reducer, which will give it back.
  void hand_over(const at::Tensor& buffer);
  void give_back(const at::Tensor& buffer);
  /// The reducer failed: ends all waits.
  void break_up();
  /// A new step: all buffers are free.
  void reset();

  ~GradientRing();
  GradientRing(const GradientRing&) = delete;
  GradientRing& operator=(const GradientRing&) = delete;

  std::int64_t bytes() const;  ///< of all

 private:
  enum class Use { free, filling, reducing };
  struct Buffer {
    at::Tensor memory;
    Use use;
    DeviceEvent reduced;
  };
  Buffer* in_use(Use use);
  Buffer& buffer_of(const at::Tensor& memory);

  const std::int64_t numel_;
  mutable std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<Buffer> buffers_;
  bool broken_ = false;
};

}  // namespace troupe
