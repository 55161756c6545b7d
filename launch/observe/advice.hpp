#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/observe/run_statistics.hpp"

namespace troupe {

/// Something about a run that costs time, and what may help.
struct Advice {
  std::string subject;  ///< communication, loader, ranks, buckets, scaling, checkpoints, validation, skipped steps,
                        ///< failures, records
  bool problem = true;  ///< false: said for the record, nothing to do
  std::string finding;  ///< a sentence with the numbers
  std::string remedy;   ///< settings to try; empty where there is nothing to do
};

/// How many times one rank N ranks are, over N. `measured`: against a run of its own; else what the numbers allow at
/// best.
struct ScalingEfficiency {
  double value = 0;  ///< 0 to 1 and beyond
  bool measured = false;
  int baseline_world_size = 1;
};
/// Nothing for one rank, where numbers are missing, and where the baseline has as many ranks. Pure.
std::optional<ScalingEfficiency> scaling_efficiency(const RunNumbers& run, const RunNumbers* baseline);
/// What is usually said of data-parallel training with so many ranks (90-95 % at 2, 80-90 % at 8, in between by the
/// logarithm, beyond as at 8), which is folklore without a source: a floor, no aim.
std::pair<double, double> usual_efficiency(int world_size) noexcept;

/// What to change, the costliest first. Pure: the same numbers give the same advice. `baseline`: another run of the
/// same work, with fewer ranks; may be null.
std::vector<Advice> advise(const RunNumbers& run, const RunNumbers* baseline);

}  // namespace troupe
