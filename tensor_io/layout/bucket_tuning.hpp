#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensor_io/layout/bucket_plan.hpp"

namespace troupe {

/// What a collective costs: latency and bandwidth, as in Hockney's model (Parallel Computing 20, 1994).
struct WireCost {
  double fixed_ms = 0;  ///< of each collective
  double ms_per_mib = 0;
  double of(std::int64_t bytes) const noexcept {
    return fixed_ms + ms_per_mib * static_cast<double>(bytes) / (1 << 20);
  }
};

struct WireSample {
  std::int64_t bytes = 0;
  double ms = 0;
};

/// By least squares. Nothing where the samples do not tell latency from bandwidth: all of about one length, or longer
/// ones no slower.
std::optional<WireCost> fit_wire_cost(std::span<const WireSample> samples);

struct BucketCaps {
  std::int64_t cap_bytes = 0, first_cap_bytes = 0;
  bool operator==(const BucketCaps&) const = default;
};

/// When the last bucket would be reduced, in ms from the start of backward. Each bucket goes out when its last gradient
/// is there and the one before it is reduced. `ready_ms` by parameter; in the order of the plan for those that it does
/// not know: not finite.
double predict_reduced(const BucketPlan& plan, std::span<const double> ready_ms, const WireCost& cost);

struct BucketChoice {
  BucketCaps caps;
  double now_ms = 0, then_ms = 0;  ///< predict_reduced of the plan as it is, and of the one chosen
};

/// The caps whose plan is reduced first, of powers of two from 64 KiB to the whole. What it has stays unless another
/// one wins more than `gain` of what is left to win: the time from the last gradient to the end of its reduction. Pure.
BucketChoice choose_caps(std::span<const ParameterLayout> layout, std::span<const std::int32_t> order,
                         std::span<const double> ready_ms, const WireCost& cost, const BucketCaps& now,
                         double gain = 0.1);

}  // namespace troupe
