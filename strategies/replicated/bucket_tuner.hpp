#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layout/bucket_tuning.hpp"

namespace troupe {

/// What a rank measures of its buckets, step by step, and what all ranks make of it together.
///
/// A gradient counts from when the last rank had it, since a bucket goes out then; a collective takes as long as on the
/// rank that waited least for the others in it, over all steps measured.
class BucketTuner {
 public:
  static constexpr int kSteps = 20;   ///< measured before a look
  static constexpr int kEvery = 500;  ///< steps between two looks, once nothing better was found
  /// Of the step under way: whether its times are wanted.
  bool measures() const noexcept { return wait_ <= 0; }
  /// One step that was reduced. `ready_ms` by parameter, not a number for those without gradient; `bucket_ms` by
  /// bucket.
  void add(std::span<const double> ready_ms, std::span<const float> bucket_ms);
  /// After each step, on all ranks alike: it is time to look.
  bool step_done();
  /// The caps for the steps to come, the same on all ranks. Collective.
  BucketChoice look(std::span<const ParameterLayout> layout, const BucketPlan& plan, const BucketCaps& now,
                    Communicator& lane);
  /// Other buckets, or other ranks: what was measured is of no use.
  void reset();

 private:
  std::vector<std::vector<double>> ready_ms_;  // by parameter, of each step
  std::vector<double> least_ms_;               // by bucket
  int steps_ = 0, wait_ = 0;
};

}  // namespace troupe
