#include "tensor_io/optimizer/loss_scaler.hpp"

#include <cmath>

#include "tensor_io/base/error.hpp"

namespace troupe {

LossScaler::LossScaler(const LossScalerOptions& options, bool enabled)
    : enabled_(enabled),
      scale_(static_cast<float>(options.loss_scale_init)),
      growth_(options.loss_scale_growth),
      backoff_(options.loss_scale_backoff),
      interval_(options.loss_scale_interval) {}

void LossScaler::update(bool overflowed) {
  if (!enabled_) return;
  if (overflowed) {
    scale_ = static_cast<float>(scale_ * backoff_);
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == interval_) {
    // PyTorch does not let it grow past the largest f32.
    if (const auto grown = static_cast<float>(scale_ * growth_); std::isfinite(grown)) scale_ = grown;
    growth_tracker_ = 0;
  }
}

void LossScaler::load(double scale, std::int64_t growth_tracker) {
  const auto narrow = static_cast<float>(scale);
  if (!(narrow > 0) || !std::isfinite(narrow) || growth_tracker < 0) {
    throw Error(
        ErrorCode::bad_data, "loss scaler",
        "a scale of " + std::to_string(scale) + " after " + std::to_string(growth_tracker) + " steps is impossible");
  }
  scale_ = narrow;
  growth_tracker_ = growth_tracker;
}

}  // namespace troupe
