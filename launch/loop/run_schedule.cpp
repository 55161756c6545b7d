#include "launch/loop/run_schedule.hpp"

#include "tensor_io/base/error.hpp"
#include "tensor_io/optimizer/schedule.hpp"

namespace troupe {

double RunSchedule::scheduled(const OptimizerOptions& options, std::int64_t step) const {
  const auto total = total_steps_ > 0 ? total_steps_ : config_.max_steps;
  if (options.schedule == "cosine" && total == 0) {
    throw Error(ErrorCode::usage, "schedule",
                "cosine goes by the run's length, which a loop without rank.loader does not tell", "set max_steps");
  }
  if (options.schedule == "step" && steps_per_epoch_ == 0) {
    throw Error(ErrorCode::usage, "schedule", "step goes by epochs, and a loop without rank.loader has none",
                "use constant or cosine");
  }
  return scheduled_lr(options, step, steps_per_epoch_, total);
}

double RunSchedule::rate_for(const Optimizer& optimizer, std::int64_t step) const {
  if (!optimizer.has_own_rates()) return scheduled(config_, step);
  const auto given = config_.sources.find("lr");
  if (given != config_.sources.end() && config_.lr != OptimizerOptions().lr) {  // a printed config has the default, too
    throw Error(ErrorCode::usage, "lr",
                given->second + " sets it, and this program's " + optimizer.name() + " optimizer has rates of its own",
                "give the rate to its constructor, or take rank.make_optimizer");
  }
  if (config_.schedule == "cosine" && config_.lr_min != 0) {
    throw Error(ErrorCode::usage, "lr_min",
                "it is a rate, and this program's " + optimizer.name() +
                    " optimizer has rates of its own, which a schedule multiplies",
                "leave it at 0");
  }
  auto factor = static_cast<const OptimizerOptions&>(config_);
  factor.lr = 1;
  return scheduled(factor, step);
}

}  // namespace troupe
