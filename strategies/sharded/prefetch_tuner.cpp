#include "strategies/sharded/prefetch_tuner.hpp"

#include <algorithm>

#include "tensor_io/base/upper_median.hpp"

namespace troupe {

bool PrefetchTuner::add(const Times& step) {
  if (rest_ > 0) {
    --rest_;
    return false;
  }
  waited_.push_back(step.waited);
  step_.push_back(step.step);
  return waited_.size() >= kSteps;
}

PrefetchTuner::Times PrefetchTuner::measured() const { return {upper_median(waited_), upper_median(step_)}; }

std::int64_t PrefetchTuner::decide(const Times& times) {
  ++decisions_;
  waited_.clear();
  step_.clear();
  const bool in_vain = trying_ && times.waited > (1 - kGain) * waited_before_;
  if (in_vain) depth_ = before_;
  trying_ = !in_vain && depth_ < most_ && times.waited > kWorth * times.step;
  if (!trying_) {
    rest_ = kEvery;
    return depth_;
  }
  before_ = depth_;
  waited_before_ = times.waited;
  return depth_ = std::min(most_, std::max<std::int64_t>(1, 2 * depth_));
}

}  // namespace troupe
