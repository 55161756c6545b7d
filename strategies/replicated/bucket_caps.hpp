#pragma once
#include <c10/core/Device.h>

#include <cstdint>

#include "actors/rank/strategy_options.hpp"

namespace troupe {

struct BucketCaps {
  std::int64_t cap_bytes = 0, first_cap_bytes = 0;
};

/// The options of buckets, in bytes. Defaults: NCCL's launches cost, so a GPU has PyTorch's 25 MiB. On CPUs it is 5
/// MiB: over a network the wire should be busy from the first layer on, and in shared memory buckets cost next to
/// nothing (docs/benchmarks.md).
inline BucketCaps bucket_caps(const StrategyOptions& options, at::Device device) {
  const auto bytes = [](double mib) { return static_cast<std::int64_t>(mib * (1 << 20)); };
  const double cap = options.bucket_cap_mb > 0 ? options.bucket_cap_mb : device.is_cpu() ? 5 : 25;
  return {bytes(cap), bytes(options.first_bucket_mb)};
}

}  // namespace troupe
