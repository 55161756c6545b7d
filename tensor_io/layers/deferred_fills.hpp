#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

namespace troupe {

// LibTorch keeps this key for libraries that do this. In a tensor it sends what is done with it to deferred_init.cpp.
constexpr auto kDeferredKey = c10::DispatchKey::DeferredInit;

/// A call that was not made. Its tensor is described, not held: that would hold the storage that holds this.
struct Fill {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;  // but the first, the tensor
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;
  // The generator's before the call, about 5 KB; undefined: it draws nothing. A copy, so that the values are made on
  // any thread at any time, and no other thread's numbers are disturbed.
  at::Tensor generator_state;
};

/// What a storage without memory is to be filled with. It lives in the storage, so that all that share one share the
/// tape, and goes where that goes.
class FillTape {
 public:
  /// The tape of the tensor's storage; nullptr: that has memory.
  static FillTape* of(const at::Tensor& tensor);
  /// Takes the storage's memory away. Whoever asks for its address is told why there is none.
  static FillTape& begin(const at::Tensor& tensor);
  /// Gives the storage memory, and the values. Where that fails the tape stays.
  void play(const at::Tensor& tensor) const;

  void add(Fill fill);
  void clear() { fills_.clear(), bytes_ = 0; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<Fill> fills_;
  std::size_t bytes_ = 0;  // about
};

/// What the call's random numbers are drawn into where nobody wants them yet: memory of the tensor's layout that is
/// given back at once.
at::Tensor scratch_like(const at::Tensor& tensor);
/// Whether what is done with this very tensor is sent to deferred_init.cpp. Others may share its storage.
void set_deferred_key(const at::Tensor& tensor, bool deferred);

}  // namespace troupe
