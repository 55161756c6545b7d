#include "tensor_io/optimizer/step_decision_on_device.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/reciprocal.h>

#include <algorithm>

namespace troupe {
namespace {

constexpr std::int64_t kPiece = 1 << 24;  // elements: the copy in f32 takes 64 MiB at most

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

}  // namespace

DeviceDecision decide_on_device(const at::Tensor& totals, const at::Tensor& scale, double clip_norm, bool norm_counts) {
  at::NoGradGuard no_grad;
  DeviceDecision decision;
  const auto f64_scale = scale.defined() ? scale.to(at::kDouble) : at::Tensor();
  if (f64_scale.defined()) decision.factor = f64_scale.reciprocal();
  if (!norm_counts) {
    decision.skip = totals.select(0, 1).gt(0).to(at::kFloat);
    return decision;
  }
  auto norm = totals.select(0, 0).sqrt();
  if (f64_scale.defined()) norm = norm.div(f64_scale);
  decision.skip = norm.isfinite().logical_not().to(at::kFloat);
  if (clip_norm <= 0) return decision;
  // The guard against division by zero of torch.nn.utils.clip_grad_norm_. Of a step that is skipped it stays a number:
  // what lies between parameters in a flat gradient is zero, is looked at with it, and would not be zero again.
  const auto clip = at::full({}, clip_norm, totals.options()).div_(norm.add(1e-6)).clamp_max_(1).nan_to_num_(1);
  decision.factor = decision.factor.defined() ? decision.factor.mul(clip) : clip;
  return decision;
}

void scale_by(const at::Tensor& flat, const at::Tensor& factor) {
  at::NoGradGuard no_grad;
  if (!is_half(flat.scalar_type())) {
    flat.mul_(factor);
    return;
  }
  const auto narrow = factor.to(at::kFloat);
  for (std::int64_t begin = 0; begin < flat.numel(); begin += kPiece) {
    const auto piece = flat.narrow(0, begin, std::min(kPiece, flat.numel() - begin));
    piece.copy_(piece.to(at::kFloat).mul_(narrow));
  }
}

void DeviceLossScale::load(const LossScaler& scaler) {
  if (!scaler.enabled()) return;
  const auto options = at::TensorOptions().device(device_);
  scale_ = at::full({}, scaler.scale(), options.dtype(at::kFloat));
  growth_tracker_ = at::full({}, scaler.growth_tracker(), options.dtype(at::kInt));
}

at::Tensor DeviceLossScale::start(double weight, double parts) const {
  at::NoGradGuard no_grad;
  if (scale_.defined()) return scale_.to(at::kDouble).mul(weight).div(parts);
  return at::full({}, weight / parts, at::TensorOptions().device(device_).dtype(at::kDouble));
}

at::Tensor DeviceLossScale::factor_of(const at::Tensor& loss, const at::Tensor& start) {
  at::NoGradGuard no_grad;
  const auto zero_if_finite = loss.detach().to(at::kDouble).mul(0);
  return zero_if_finite.add(start).to(is_half(loss.scalar_type()) ? at::kFloat : loss.scalar_type());
}

at::Tensor DeviceLossScale::factor_of(const at::Tensor& loss, double weight, double parts) const {
  return factor_of(loss, start(weight, parts));
}

void DeviceLossScale::update(const at::Tensor& skip) {
  if (!scale_.defined()) return;
  at::_amp_update_scale_(scale_, growth_tracker_, skip, options_.loss_scale_growth, options_.loss_scale_backoff,
                         options_.loss_scale_interval);
}

}  // namespace troupe
