#include "tensor_io/layout/bucket_tuning.hpp"

#include <algorithm>
#include <cmath>

namespace troupe {

std::optional<WireCost> fit_wire_cost(std::span<const WireSample> samples) {
  if (samples.size() < 2) return std::nullopt;
  double mean_x = 0, mean_y = 0, longest = 0, shortest = 1e300;
  for (const auto& sample : samples) {
    const double x = static_cast<double>(sample.bytes) / (1 << 20);
    longest = std::max(longest, x);
    shortest = std::min(shortest, x);
    mean_x += x;
    mean_y += sample.ms;
  }
  if (longest < 1.5 * shortest) return std::nullopt;
  const auto n = static_cast<double>(samples.size());
  mean_x /= n;
  mean_y /= n;
  double xx = 0, xy = 0;
  for (const auto& sample : samples) {
    const double x = static_cast<double>(sample.bytes) / (1 << 20) - mean_x;
    xx += x * x;
    xy += x * (sample.ms - mean_y);
  }
  const double slope = xy / xx;
  if (!(slope > 0)) return std::nullopt;
  // A line that meets zero above 0 says no more than that latency is too small to be seen.
  return WireCost{std::max(0.0, mean_y - slope * mean_x), slope};
}

double predict_reduced(const BucketPlan& plan, std::span<const double> ready_ms, const WireCost& cost) {
  double end = 0;
  for (const auto& bucket : plan.buckets) {
    double ready = 0;
    for (const auto& slot : bucket.slots) {
      const double came = ready_ms[static_cast<std::size_t>(slot.parameter)];
      if (std::isfinite(came)) ready = std::max(ready, came);
    }
    end = std::max(end, ready) + cost.of(bucket.numel() * static_cast<std::int64_t>(c10::elementSize(bucket.dtype)));
  }
  return end;
}

BucketChoice choose_caps(std::span<const ParameterLayout> layout, std::span<const std::int32_t> order,
                         std::span<const double> ready_ms, const WireCost& cost, const BucketCaps& now, double gain) {
  const auto ends = [&](const BucketCaps& caps) {
    return predict_reduced(plan_buckets(layout, order, caps.cap_bytes, caps.first_cap_bytes), ready_ms, cost);
  };
  double last = 0;  // gradient
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (!layout[i].requires_grad) continue;
    if (std::isfinite(ready_ms[i])) last = std::max(last, ready_ms[i]);
    bytes += layout[i].numel() * static_cast<std::int64_t>(c10::elementSize(layout[i].dtype));
  }
  BucketChoice choice{now, ends(now), 0};
  choice.then_ms = choice.now_ms;
  auto best = choice;
  for (std::int64_t cap = 64 << 10;; cap *= 2) {
    for (const auto first : {cap, std::min(cap, now.first_cap_bytes)}) {
      const double end = ends({cap, first});
      if (end <= best.then_ms) best = {{cap, first}, choice.now_ms, end};
    }
    if (cap >= bytes) break;
  }
  return choice.now_ms - best.then_ms > gain * (choice.now_ms - last) ? best : choice;
}

}  // namespace troupe
