#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/observe/run_statistics.hpp"

namespace troupe {

/// A loss of time in a run, and possible remedies.
struct Advice {
  std::string subject;  ///< communication, loader, ranks, buckets, scaling, checkpoints, validation, skipped steps,
                        ///< failures, records
  bool problem = true;  ///< false: for the record, nothing to do
  std::string finding;  ///< a sentence with the numbers
  std::string remedy;   ///< settings to try; empty if there is nothing to do
};

/// The speed of N ranks in multiples of one rank's, over N. `measured`: against a separate run; else the best that the
/// numbers allow.
struct ScalingEfficiency {
  double value = 0;  ///< 0 to 1 and beyond
  bool measured = false;
  int baseline_world_size = 1;
};
/// Nothing for one rank, if numbers are missing, and if the baseline has equally many ranks. Pure.
std::optional<ScalingEfficiency> scaling_efficiency(const RunNumbers& run, const RunNumbers* baseline);
/// The usual claims for data-parallel training with this many ranks (90-95 % at 2, 80-90 % at 8, in between by the
/// logarithm, beyond as at 8). They are folklore without a source: a floor, no aim.
std::pair<double, double> usual_efficiency(int world_size) noexcept;

/// Proposed changes, the costliest problem first. Pure: the same numbers give the same advice. `baseline`: another run
/// of the same work, with fewer ranks; may be null.
std::vector<Advice> advise(const RunNumbers& run, const RunNumbers* baseline);

}  // namespace troupe
