#include "strategies/replicated/bucket_tuner.hpp"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor_io/base/upper_median.hpp"

namespace troupe {

void BucketTuner::reset() {
  ready_ms_.clear();
  least_ms_.clear();
  steps_ = wait_ = 0;
}

void BucketTuner::add(std::span<const double> ready_ms, std::span<const float> bucket_ms) {
  ready_ms_.resize(ready_ms.size());
  for (std::size_t p = 0; p < ready_ms.size(); ++p) {
    if (std::isfinite(ready_ms[p])) ready_ms_[p].push_back(ready_ms[p]);
  }
  least_ms_.resize(bucket_ms.size(), std::numeric_limits<double>::max());
  for (std::size_t b = 0; b < bucket_ms.size(); ++b)
    least_ms_[b] = std::min(least_ms_[b], static_cast<double>(bucket_ms[b]));
}

bool BucketTuner::step_done() {
  if (wait_ > 0) {
    --wait_;
    return false;
  }
  return ++steps_ >= kSteps;
}

BucketChoice BucketTuner::look(std::span<const ParameterLayout> layout, const BucketPlan& plan, const BucketCaps& now,
                               Communicator& lane) {
  std::vector<double> ready(layout.size(), -1), least(plan.buckets.size(), std::numeric_limits<double>::max());
  for (std::size_t p = 0; p < std::min(ready.size(), ready_ms_.size()); ++p) {
    if (!ready_ms_[p].empty()) ready[p] = upper_median(ready_ms_[p]);
  }
  std::copy_n(least_ms_.begin(), std::min(least.size(), least_ms_.size()), least.begin());
  const auto tensor_of = [](std::vector<double>& values) {
    return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kDouble);
  };
  lane.all_reduce(tensor_of(ready), ReduceOp::max, "times of gradients");
  lane.all_reduce(tensor_of(least), ReduceOp::min, "times of buckets");
  for (auto& time : ready) {
    if (time < 0) time = std::numeric_limits<double>::quiet_NaN();
  }
  std::vector<WireSample> samples;
  for (std::size_t b = 0; b < least.size(); ++b) {
    const auto& bucket = plan.buckets[b];
    if (least[b] < std::numeric_limits<double>::max())
      samples.push_back({bucket.numel() * static_cast<std::int64_t>(c10::elementSize(bucket.dtype)), least[b]});
  }
  reset();
  wait_ = kEvery;
  const auto cost = fit_wire_cost(samples);
  if (!cost) return {now, 0, 0};
  auto choice = choose_caps(layout, plan.order, ready, *cost, now);
  if (!(choice.caps == now)) wait_ = 0;  // what it really brings is seen by the next look
  return choice;
}

}  // namespace troupe
