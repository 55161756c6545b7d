#pragma once
#include <ATen/core/Tensor.h>

#include "tensor_io/optimizer/loss_scaler.hpp"

namespace troupe {

/// Whether a step is applied, and what its gradients are multiplied by, as the device has it: the host has not read
/// either.
struct DeviceDecision {
  at::Tensor skip;    ///< () f32: 1 where the step must leave everything as it was, else 0. What LibTorch's fused
                      ///< optimizers call found_inf
  at::Tensor factor;  ///< () f64, a finite number also where the step is skipped; undefined: 1
};

/// What the host makes of a step's gradients once it has read them, on the device: `totals` (2,) f64 there, the sum of
/// the reduced gradients' squares and how many elements are not finite; `scale` () f32 there, the loss scale, undefined
/// where there is none. `clip_norm` 0: not clipped. `norm_counts`: a norm that is not finite skips the step, too. The
/// same operations in f64 as on the host, so the same factor. Waits for nothing.
DeviceDecision decide_on_device(const at::Tensor& totals, const at::Tensor& scale, double clip_norm, bool norm_counts);

/// `flat` (numel,), contiguous, times `factor` () f64 on its device, in place. f16 and bf16 are multiplied in f32 and
/// rounded once.
void scale_by(const at::Tensor& flat, const at::Tensor& factor);

/// The loss scale on the device, where the next step's loss needs it before the host knows whether the last step
/// overflowed. It changes as LossScaler does, which follows when the host has read what the device decided.
class DeviceLossScale {
 public:
  DeviceLossScale() = default;
  DeviceLossScale(const LossScalerOptions& options, c10::Device device) : options_(options), device_(device) {}

  /// Takes over the host's. Where that is not enabled, there is no scale.
  void load(const LossScaler& scaler);
  /// () f32 there; undefined where there is none.
  const at::Tensor& value() const noexcept { return scale_; }
  /// What `loss` (one element, on the device) is multiplied by before backward: the scale times `weight` / `parts`. Not
  /// a number where the loss is not finite: so its gradients are not either, on all ranks once they are reduced. Of the
  /// loss's dtype, f32 for f16 and bf16.
  at::Tensor factor_of(const at::Tensor& loss, double weight, double parts) const;
  /// The same in two parts: first what does not depend on the loss, () f64 there ...
  at::Tensor start(double weight, double parts) const;
  /// ... then the factor, of what `start` has given.
  static at::Tensor factor_of(const at::Tensor& loss, const at::Tensor& start);
  /// The step was skipped, or not.
  void update(const at::Tensor& skip);

 private:
  LossScalerOptions options_;
  c10::Device device_ = c10::kCPU;
  at::Tensor scale_, growth_tracker_;  // () f32, () i32
};

}  // namespace troupe
