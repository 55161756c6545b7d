#pragma once
// torch.amp.GradScaler as PyTorch's documentation has it, with its factors: growth 2, backoff 0.5. Includes nothing of
// Troupe.
#include "tests/differential/job.hpp"

namespace troupe::differential {

class ReferenceGradScaler {
 public:
  explicit ReferenceGradScaler(const Job& job)
      : on_(job.loss_scaler == "on" || job.amp == "fp16"), interval_(job.loss_scale_interval) {}

  bool is_on() const { return on_; }
  double scale() const { return on_ ? scale_ : 1; }
  /// A step is over.
  void update(bool found_infinite) {
    if (found_infinite) {
      scale_ *= 0.5;
      in_a_row_ = 0;
    } else if (++in_a_row_ == interval_) {
      scale_ *= 2;
      in_a_row_ = 0;
    }
  }

 private:
  bool on_;
  int interval_, in_a_row_ = 0;
  double scale_ = 65536;
};

}  // namespace troupe::differential
