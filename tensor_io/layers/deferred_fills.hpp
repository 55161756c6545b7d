#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace troupe {

// LibTorch keeps this key for such libraries. A tensor with it sends its operations to deferred_init.cpp.
constexpr auto kDeferredKey = c10::DispatchKey::DeferredInit;

/// A call that was not made. Its tensor is described, not held, since its storage holds this.
struct Fill {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;  // but the first, the tensor
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;
  // The generator's before the call, about 5 KB; undefined: it draws nothing. A copy, so that the values can be made on
  // any thread at any time, without a change of another thread's numbers.
  at::Tensor generator_state;
};

/// The values for a storage without memory. It lives in the storage, so that all tensors of the storage share the tape,
/// and dies with it.
class FillTape {
 public:
  /// The tape of the tensor's storage; nullptr: that has memory.
  static FillTape* of(const at::Tensor& tensor);
  /// Takes the storage's memory away. A request for its address throws, with the reason.
  static FillTape& begin(const at::Tensor& tensor);
  /// Gives the storage memory, and the values. If that fails the tape stays.
  void play(const at::Tensor& tensor) const;

  void add(Fill fill);
  void clear() { fills_.clear(), bytes_ = 0; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<Fill> fills_;
  std::size_t bytes_ = 0;  // about
};

/// Memory for a call's random numbers that are not needed yet: it has the tensor's layout and is given back at
/// once.
at::Tensor scratch_like(const at::Tensor& tensor);
/// Whether operations on this very tensor go to deferred_init.cpp. Others may share its storage.
void set_deferred_key(const at::Tensor& tensor, bool deferred);

}  // namespace troupe
