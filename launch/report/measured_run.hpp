#pragma once
#include <string>
#include <utility>
#include <vector>

#include "launch/observe/run_folder.hpp"
#include "launch/observe/run_statistics.hpp"

namespace troupe {

/// (step, value), steps not falling.
using StepPoints = std::vector<std::pair<double, double>>;

/// A run and all that is computed of it once, for the page, the comparison and the text alike. Pure.
struct MeasuredRun {
  explicit MeasuredRun(RunHistory read);
  RunHistory history;
  RunNumbers numbers;
  StepPoints loss, held_out_loss;
  StepPoints accuracy, held_out_accuracy;  ///< in percent; empty if the program counts no correct samples
  StepPoints learning_rate;
  StepPoints memory;                          ///< of rank 0's process, the most so far, in GiB
  StepPoints device_memory, device_reserved;  ///< of tensors; of all that LibTorch took; empty on a CPU
  const std::string& name() const noexcept { return history.folder; }
};

/// One metric of the records of one kind; records that lack it are left out.
StepPoints series(const RunHistory& run, MetricRecord::Kind kind, const char* name);
/// A resumed run's steps rise again from the step where it went on: this puts them in order.
StepPoints by_step(StepPoints points);
/// The lowest or the highest value, and its step. `points` are not empty.
std::pair<double, double> lowest(const StepPoints& points);
std::pair<double, double> highest(const StepPoints& points);

}  // namespace troupe
