#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// Optimizer and learning rate schedule.
struct OptimizerOptions {
  std::string optimizer = "sgd";  ///< sgd, adamw
  double lr = 0.01;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 1e-4;
  std::string no_decay;  ///< parameters without it: norms, biases, globs of names
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  std::string schedule = "constant";  ///< constant, cosine, step
  std::int64_t warmup_steps = 0;      ///< linear warm-up from 0 to lr
  double lr_min = 0;                  ///< the end of cosine
  std::int64_t lr_step_epochs = 30;   ///< step: every this many epochs ...
  double lr_step_factor = 0.1;        ///< ... the rate is multiplied by this
  double label_smoothing = 0;
};

}  // namespace troupe
