#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "actors/block/block_trace.hpp"
#include "launch/config/config.hpp"
#include "launch/config/profile_setting.hpp"
#include "launch/loop/loop_records.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/observe/operators.hpp"
#include "tensor_io/base/trace.hpp"

namespace troupe {

/// One rank's part of `--profile steps=…`, if the config wants a trace; else its calls do nothing. Opens and closes its
/// window, and brings the records to rank 0, which writes the files. Compute's thread.
class LoopTrace {
 public:
  LoopTrace(const Config& config, const RankSystemOptions& options);
  /// The rank's threads record into it.
  RankSystemOptions with_recorder(RankSystemOptions options) const;

  explicit operator bool() const noexcept { return recorder_ != nullptr; }
  /// Its blocks are in the trace.
  void set_model(std::shared_ptr<torch::nn::Module> model) { model_ = std::move(model); }
  /// Between two steps, once the model is known: opens or closes the window, if it is due.
  void update(std::int64_t steps_done);
  /// Collective: brings it to rank 0, which writes it and reports on it. False: it is not due.
  bool gather(Compute& compute, LoopRecords& records);
  /// Collective. Compares clocks; rank 0 writes one rank's events after the other. Returns there the line to print,
  /// elsewhere nothing. Throws the communicator's errors; the records are kept then, for another try.
  std::string gather(Communicator& communicator, const Membership& membership);
  /// The job has failed, so no rank gathers: this rank's file alone, with its own clock. Returns the line to print, or
  /// nothing.
  std::string write_alone(int rank, const std::string& host);
  /// As Rank::end_trace and Rank::give_up_trace.
  void end(RankSystem& system, LoopRecords& records);
  void give_up(RankSystem& system) noexcept;

 private:
  void close();
  void record_until_now();
  void write(Compute& compute, LoopRecords& records);

  ProfileSetting setting_;
  const std::string run_dir_, job_id_;
  const int began_with_;  // ranks of the job when it began
  const bool on_device_;
  std::shared_ptr<TraceRecorder> recorder_;  // nullptr: no trace is wanted
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<BlockTrace> blocks_;
  std::unique_ptr<OperatorTrace> operators_;
  TraceRecorder::Recorded recorded_;  // of a closed window, until a step after it
  std::int64_t written_ = 0;          // steps of all ranks in the files
  std::string no_operators_;          // why
  bool ended_ = false;                // it was cut off by the run's end, and gathered
};

}  // namespace troupe
