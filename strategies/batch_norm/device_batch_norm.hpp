#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// The data beside tensors for one call of a synchronised BatchNorm, and its backward.
struct BatchNormCall : torch::CustomClassHolder {
  std::shared_ptr<Communicator> communicator;
  std::string label;          // of its collectives, and in errors
  std::int64_t counted = -1;  // of this rank's samples, those in the statistics; negative: all
  double eps = 0;
  double total = 0;    // on the CPU: values per channel on all ranks
  bool counts = true;  // false after forward: no rank had any

  std::int64_t counted_of(const at::Tensor& input) const;
  /// The output's gradient in the input's layout, without the gradient of samples that do not count: their loss may be
  /// infinite, and all ranks' gradients are summed.
  at::Tensor counted_gradient(const at::Tensor& gradient, const at::Tensor& input) const;
  /// Runs a collective of the layer. Returns false if a lost rank broke the communicator. It stays broken, and the
  /// step's vote fails on it: so the step is given up there, not inside the user's forward.
  static bool reached(const std::function<void()>& collective);
  /// Whether all ranks together have `values` per channel; `counts` keeps the answer. Throws Error(usage) for one
  /// value, which has no variance.
  bool has_values(double values);
};

/// Normalises by statistics over the samples of all ranks, on a device. It uses LibTorch's operators, those of
/// PyTorch's SyncBatchNorm, in f32 (f64 for an f64 input). One gather in forward, one sum in backward, both of some
/// numbers per channel.
///
/// Waits for the device only if this rank's part has fewer than two values per channel: then it looks at the number of
/// values on all ranks.
///
/// `input` (N, C, ...), contiguous or channels-last. weight, bias, running_mean, running_var (C,) or undefined; the
/// running ones move.
at::Tensor device_batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& running_mean, const at::Tensor& running_var, double momentum,
                             const c10::intrusive_ptr<BatchNormCall>& call);

}  // namespace troupe
