#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensor_io/base/registry.hpp"

namespace troupe {

/// One action of a rank of a pipeline. It waits for its inputs from the neighbours: the activations of the stage
/// before, the gradient of the stage behind. Its results go to them at once. So a schedule has no sends and
/// receives.
struct StageInstruction {
  enum class Kind : std::uint8_t {
    forward,
    backward,         ///< gradients of inputs and weights
    backward_input,   ///< of the inputs alone: the stage before waits for these
    backward_weight,  ///< the rest, any time later
  };
  Kind kind = Kind::forward;  ///< the action
  int micro_batch = 0;        ///< 0-based
  int chunk = 0;              ///< which of the rank's stages: chunk c of rank r is stage c * ranks + r

  bool operator==(const StageInstruction&) const = default;
  std::string to_string() const;  ///< `forward of micro-batch 3, chunk 0`
};

/// The actions of one rank in a step, in this order.
using StageSchedule = std::vector<StageInstruction>;

/// The size of a pipeline and of its step.
struct PipelineShape {
  int ranks = 1;          ///< of the pipeline
  int micro_batches = 1;  ///< of a step
  int chunks = 1;         ///< stages of a rank
};

/// A schedule is a pure function: from the shape to one list for each rank.
using ScheduleFunction = std::function<std::vector<StageSchedule>(const PipelineShape&)>;

/// All forwards, then all backwards. Huang et al., "GPipe", NeurIPS 2019, arXiv 1811.06965.
std::vector<StageSchedule> gpipe_schedule(const PipelineShape& shape);
/// One forward, one backward: a rank holds the activations of `ranks - rank` micro-batches at most, not of all.
/// Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training" (PipeDream-Flush), ICML 2021, arXiv 2006.09503.
std::vector<StageSchedule> one_f_one_b_schedule(const PipelineShape& shape);
/// 1F1B over several stages on each rank: the bubble shrinks by the number of chunks. Narayanan et al., "Efficient
/// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, arXiv 2104.04473. Throws
/// Error(usage) if the micro-batches are no multiple of the ranks.
std::vector<StageSchedule> interleaved_schedule(const PipelineShape& shape);
/// 1F1B with backward cut in two: the weights' part fills the bubble, and memory stays 1F1B's. ZB-H1 of Qi et al.,
/// "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241.
std::vector<StageSchedule> zero_bubble_schedule(const PipelineShape& shape);

/// Throws Error(usage) naming rank and instruction: a forward or backward that is missing, doubled or in the wrong
/// order; a micro-batch or chunk that is not there; ranks that wait for each other for ever. A schedule that passes
/// ends, since transfers are buffered and matched by stage and micro-batch: an instruction waits for its inputs alone.
void check_schedule(const std::vector<StageSchedule>& schedule, const PipelineShape& shape);

/// The times of instructions, in any unit. A whole backward takes the sum of its parts.
struct StageCosts {
  double forward = 1, backward_input = 1, backward_weight = 1;
};

/// The run of a schedule if transfers take no time.
struct ScheduleRun {
  double makespan = 0;       ///< from the first instruction's start to the last one's end
  std::vector<double> busy;  ///< by rank
  std::vector<int> held;     ///< by rank: most forwards at a time whose backward (or its input part) had not come yet
  double bubble() const;     ///< share of all ranks' time that is idle, 0 to 1
};
/// On virtual time; the schedule must have passed check_schedule.
ScheduleRun run_on_virtual_time(const std::vector<StageSchedule>& schedule, const PipelineShape& shape,
                                const StageCosts& costs = {});

/// The papers' bubble of `gpipe`, `1f1b`, `interleaved` and `zero_bubble` as a share of all ranks' time. With p ranks,
/// m micro-batches, v chunks and a micro-batch that takes f + b + w on a rank: (p - 1) / (m + p - 1); for interleaved
/// (p - 1) / (v m + p - 1); for zero_bubble (p - 1)(f + b - w) / (m (f + b + w) + (p - 1)(f + b - w)). Throws
/// Error(usage) for another name.
double bubble_formula(const std::string& name, const PipelineShape& shape, const StageCosts& costs = {});

/// Registration by name; add your own before the job starts.
void register_schedule(const std::string& name, const std::string& description, ScheduleFunction schedule);
/// The lists of the named schedule, checked. Throws Error(usage) naming the known ones, and as check_schedule.
std::vector<StageSchedule> make_schedule(const std::string& name, const PipelineShape& shape);

/// A rank's list of the named schedule. Throws as make_schedule.
struct RankSchedule {
  RankSchedule() = default;
  RankSchedule(const std::string& name, const PipelineShape& shape, int rank);
  /// `bubble`: that of all ranks, 0 to 1, if all stages cost the same and transfers take no time. Empty: no schedule.
  std::vector<std::pair<std::string, double>> figures() const;
  StageSchedule instructions;
  double bubble = 0;
};
std::map<std::string, std::string> schedules();  ///< name -> description
std::vector<RegisteredName> known_schedules();   ///< in alphabetical order

}  // namespace troupe
