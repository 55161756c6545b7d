#pragma once
#include <ATen/core/Tensor.h>

#include "tensor_io/optimizer/loss_scaler.hpp"

namespace troupe {

/// Whether a step is applied, and the factor of its gradients, on the device: the host has not read
/// either.
struct DeviceDecision {
  at::Tensor skip;    ///< () f32: 1 if the step must leave everything as it was, else 0. It is found_inf in LibTorch's
                      ///< fused optimizers
  at::Tensor factor;  ///< () f64, finite also if the step is skipped; undefined: 1
};

/// The host's decision about a step's gradients, made on the device. `totals`: (2,) f64 there, the sum of the reduced
/// gradients' squares and the number of elements that are not finite. `scale`: () f32 there, the loss scale, undefined
/// if there is none. `clip_norm` 0: not clipped. `norm_counts`: a norm that is not finite skips the step, too. The same
/// operations in f64 as on the host, so the same factor. Waits for nothing.
DeviceDecision decide_on_device(const at::Tensor& totals, const at::Tensor& scale, double clip_norm, bool norm_counts);

/// `flat` (numel,), contiguous, times `factor` () f64 on its device, in place. f16 and bf16 are multiplied in f32 and
/// rounded once.
void scale_by(const at::Tensor& flat, const at::Tensor& factor);

/// The loss scale on the device: the next step's loss needs it before the host knows whether the last step overflowed.
/// It changes as LossScaler does, which follows when the host has read the device's decision.
class DeviceLossScale {
 public:
  DeviceLossScale() = default;
  DeviceLossScale(const LossScalerOptions& options, c10::Device device) : options_(options), device_(device) {}

  /// Takes over the host's. If that is not enabled, there is no scale.
  void load(const LossScaler& scaler);
  /// () f32 there; undefined if there is none.
  const at::Tensor& value() const noexcept { return scale_; }
  /// The factor of `loss` (one element, on the device) before backward: the scale times `weight` / `parts`. NaN if the
  /// loss is not finite: so its gradients are not either, on all ranks once they are reduced. Of the loss's dtype, f32
  /// for f16 and bf16.
  at::Tensor factor_of(const at::Tensor& loss, double weight, double parts) const;
  /// The same in two parts: first the part that does not depend on the loss, () f64 there ...
  at::Tensor start(double weight, double parts) const;
  /// ... then the factor, from the result of `start`.
  static at::Tensor factor_of(const at::Tensor& loss, const at::Tensor& start);
  /// The step was skipped, or not.
  void update(const at::Tensor& skip);

 private:
  LossScalerOptions options_;
  c10::Device device_ = c10::kCPU;
  at::Tensor scale_, growth_tracker_;  // () f32, () i32
};

}  // namespace troupe
