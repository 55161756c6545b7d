#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "actors/block/block_trace.hpp"
#include "actors/messages/membership.hpp"
#include "launch/config/profile_setting.hpp"
#include "launch/observe/operators.hpp"
#include "launch/observe/trace_json.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

struct RankTraceOptions {
  ProfileSetting setting;
  std::string run_dir, job_id;
  int began_with = 1;  ///< ranks of the job when it began
  bool on_device = false;
};

/// One rank's part of `--profile steps=…`: opens and closes its window, and brings what was recorded to rank 0, which
/// writes the files. Compute's thread.
class RankTrace {
 public:
  explicit RankTrace(RankTraceOptions options);
  ~RankTrace();

  const std::shared_ptr<TraceRecorder>& recorder() const noexcept { return recorder_; }
  /// Its blocks are in the trace.
  void set_model(std::shared_ptr<torch::nn::Module> model) { model_ = std::move(model); }
  /// Between two steps: the window opens or closes here, if it is to.
  void update(std::int64_t steps_done);
  /// The window is over: all ranks are to gather now.
  bool due(std::int64_t steps_done) const noexcept { return steps_done == options_.setting.last; }
  /// The run ends within the window: all ranks gather what there is.
  bool cut_off(std::int64_t steps_done) const noexcept {
    return options_.setting.first < steps_done && steps_done < options_.setting.last;
  }
  /// Collective. Clocks are compared, rank 0 writes one rank's events after the other. Returns there the line to say,
  /// elsewhere nothing. Throws what the communicator throws; what was recorded is kept then, for another try.
  std::string gather(Communicator& communicator, const Membership& membership);
  /// The job has failed, nobody is there to gather: this rank's file alone, with its own clock. Returns the line to
  /// say, or nothing.
  std::string write_alone(int rank, const std::string& host);

 private:
  void close();
  void record_until_now();
  std::int64_t steps_of_all(Communicator& communicator, const TraceTotals& own);

  const RankTraceOptions options_;
  const std::shared_ptr<TraceRecorder> recorder_ = std::make_shared<TraceRecorder>();
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<BlockTrace> blocks_;
  std::unique_ptr<OperatorTrace> operators_;
  TraceRecorder::Recorded recorded_;  // of a closed window, until a step after it
  std::int64_t written_ = 0;          // steps of all ranks that the files have
  std::string no_operators_;          // why
};

}  // namespace troupe
