#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// Dynamic loss scaling, for gradients that fp16 would flush to zero.
struct LossScalerOptions {
  std::string loss_scaler = "auto";         ///< auto: with fp16 autocast; on, off
  double loss_scale_init = 65536;           ///< factor of the loss at the start
  double loss_scale_growth = 2;             ///< it grows by this ...
  std::int64_t loss_scale_interval = 2000;  ///< ... after this many steps in a row without overflow
  double loss_scale_backoff = 0.5;          ///< it is multiplied by this after a step that overflowed, which is skipped
};

/// The scale and its changes, as torch.amp.GradScaler has them (Micikevicius et al., "Mixed Precision Training", ICLR
/// 2018). Pure: every rank calls `update` with the same decision and stays equal. The scale is an f32, as there.
class LossScaler {
 public:
  LossScaler() = default;
  LossScaler(const LossScalerOptions& options, bool enabled);

  bool enabled() const noexcept { return enabled_; }
  /// The factor of the loss; 1 if the scaler is not enabled.
  double scale() const noexcept { return enabled_ ? static_cast<double>(scale_) : 1; }
  std::int64_t growth_tracker() const noexcept { return growth_tracker_; }
  /// At the end of each step: a gradient on any rank was NaN or infinite, or none.
  void update(bool overflowed);
  /// The scale is so low that an overflow has another cause.
  bool exhausted() const noexcept { return enabled_ && scale_ < 1; }
  /// From a checkpoint or another rank. Throws Error(bad_data) for a scale that is not positive and finite.
  void load(double scale, std::int64_t growth_tracker);

 private:
  bool enabled_ = false;
  float scale_ = 1;
  double growth_ = 2, backoff_ = 0.5;
  std::int64_t interval_ = 2000, growth_tracker_ = 0;
};

}  // namespace troupe
