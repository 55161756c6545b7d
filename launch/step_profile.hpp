#pragma once
#include <string>

#include "actors/compute.hpp"

namespace troupe {

/// Where the time of one rank's steps went: sums over all its steps, and a table of their means for `--profile`. Pure.
class StepProfile {
 public:
  /// `data_wait_ms`: waited for the loader. `compute_ms`: from a batch's arrival to the end of its backward, over all micro-batches.
  void add(const StepReport& report, double data_wait_ms, double compute_ms);
  /// One line for each part, in ms a step and in percent. The parts add up to the step; the reducer works beside them.
  std::string table() const;

 private:
  std::int64_t steps_ = 0;
  double step_ms_ = 0, data_ms_ = 0, compute_ms_ = 0, exposed_ms_ = 0, optimizer_ms_ = 0, reduce_ms_ = 0;
  double hidden_ms_ = 0;  // of reduce_ms_: no less than this ran while compute did not wait
  std::int64_t buckets_ = 0, launched_before_end_ = 0;
};

}  // namespace troupe
