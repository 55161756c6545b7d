#pragma once
#include "actors/step/training_options.hpp"

namespace troupe {

/// Whether the loss is scaled: loss_scaler on, or auto with autocast in fp16.
inline bool scales_loss(const TrainingOptions& options) {
  const bool fp16 = options.use_amp && options.amp_dtype == "fp16";
  return options.loss_scaler == "on" || (options.loss_scaler == "auto" && fp16);
}

}  // namespace troupe
