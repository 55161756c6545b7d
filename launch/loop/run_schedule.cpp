#include "launch/loop/run_schedule.hpp"

#include <cmath>
#include <utility>

#include "launch/process/formatted.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

void RunSchedule::set_own(LrSchedule factor) {
  if (!factor) throw Error(ErrorCode::usage, "schedule", "the function is empty", "give it one, or leave the call out");
  if (own_) throw Error(ErrorCode::usage, "schedule", "it was called before", "give one function for the whole run");
  const auto refuse = [&](const std::string& field, const std::string& value) {
    const auto source = config_.sources.find(field);
    throw Error(ErrorCode::usage, field,
                "it is " + value + (source == config_.sources.end() ? "" : ", set by " + source->second) +
                    ", and this program's schedule is a function of its code",
                "leave " + field + " out, or the program's schedule");
  };
  if (config_.schedule != OptimizerOptions().schedule) refuse("schedule", "'" + config_.schedule + "'");
  if (config_.warmup_steps != 0) refuse("warmup_steps", std::to_string(config_.warmup_steps));
  if (config_.lr_min != 0) refuse("lr_min", formatted("%g", config_.lr_min));
  own_ = std::move(factor);
}

double RunSchedule::own_factor(std::int64_t step, std::int64_t total) const {
  const auto factor = own_(step, total);
  if (std::isfinite(factor) && factor >= 0) return factor;
  throw Error(ErrorCode::user, "schedule",
              formatted("the program's function returned %g for step ", factor) + std::to_string(step) + " of " +
                  std::to_string(total),
              "return a finite factor of 0 or more");
}

double RunSchedule::scheduled(const OptimizerOptions& options, std::int64_t step) const {
  const auto total = total_steps_ > 0 ? total_steps_ : config_.max_steps;
  if (own_) return options.lr * own_factor(step, total);
  if (options.schedule == "cosine" && total == 0) {
    throw Error(ErrorCode::usage, "schedule", "cosine goes by the run's length, which is unknown without rank.loader",
                "set max_steps");
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
  if (given != config_.sources.end() && !config_.as_begun.contains("lr")) {
    throw Error(ErrorCode::usage, "lr",
                given->second + " sets it, and this program's " + optimizer.name() + " optimizer has its own rates",
                "give the rate to its constructor, or take rank.make_optimizer");
  }
  if (config_.schedule == "cosine" && config_.lr_min != 0) {
    throw Error(ErrorCode::usage, "lr_min",
                "it is a rate, and this program's " + optimizer.name() +
                    " optimizer has its own rates, which a schedule multiplies",
                "leave it at 0");
  }
  auto factor = static_cast<const OptimizerOptions&>(config_);
  factor.lr = 1;
  return scheduled(factor, step);
}

}  // namespace troupe
