#include "tensor_io/optimizer/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tensor_io/base/error.hpp"

namespace troupe {

double scheduled_lr(const OptimizerOptions& options, std::int64_t step, std::int64_t steps_per_epoch,
                    std::int64_t total_steps) {
  if (step < options.warmup_steps)
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps + 1);
  if (options.schedule == "cosine") {
    const double length = static_cast<double>(std::max<std::int64_t>(1, total_steps - options.warmup_steps));
    const double done = std::min(1.0, static_cast<double>(step - options.warmup_steps) / length);
    return options.lr_min + (options.lr - options.lr_min) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
  if (options.schedule == "step") {
    const auto epoch = step / std::max<std::int64_t>(1, steps_per_epoch);
    const auto decays = epoch / std::max<std::int64_t>(1, options.lr_step_epochs);
    return options.lr * std::pow(options.lr_step_factor, static_cast<double>(decays));
  }
  if (options.schedule != "constant")
    throw Error(ErrorCode::usage, "schedule", "there is no schedule '" + options.schedule + "'",
                "known: constant, cosine, step");
  return options.lr;
}

}  // namespace troupe
