#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// Copies of tensors in memory of the host. Those from a device are launched one after the other, and waited for once.
/// One thread's.
class HostCopies {
 public:
  /// (bytes,) u8 on the host. Pinned for copies from a GPU, which then run at the full speed of its bus; LibTorch keeps
  /// pinned memory for the next time, in blocks of a power of two.
  static at::Tensor memory(std::int64_t bytes, c10::Device from);
  /// Copies now, or launches the copy in the current stream. `to`: contiguous, on the host, of the shape and dtype of
  /// `from`; neither may change before the wait.
  void add(const at::Tensor& to, const at::Tensor& from);
  /// Waits until all are there. Throws Error(timeout) after 60 s.
  void wait();

 private:
  std::optional<c10::Device> device_;  // of the copies under way
};

}  // namespace troupe
