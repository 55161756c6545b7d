#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "launch/config/config.hpp"
#include "launch/loop/loop_records.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/loop/rank_trace.hpp"

namespace troupe {

/// The trace of a program's loop, if the config wants one; else its calls do nothing. Compute's thread.
class LoopTrace {
 public:
  LoopTrace(const Config& config, const RankSystemOptions& options);
  /// The rank's threads record into it.
  RankSystemOptions with_recorder(RankSystemOptions options) const;

  explicit operator bool() const noexcept { return trace_ != nullptr; }
  void set_model(const std::shared_ptr<torch::nn::Module>& model);
  /// Between two steps, once the model is known: the window opens or closes, if it is to.
  void update(std::int64_t steps_done);
  /// Collective: brings it to rank 0, which writes it and reports on it. False: it is not due.
  bool gather(Compute& compute, LoopRecords& records);
  /// As Rank::end_trace and Rank::give_up_trace.
  void end(RankSystem& system, LoopRecords& records);
  void give_up(RankSystem& system) noexcept;

 private:
  void write(Compute& compute, LoopRecords& records);

  std::unique_ptr<RankTrace> trace_;
  bool has_model_ = false;
  bool ended_ = false;  // it was cut off by the run's end, and gathered
};

}  // namespace troupe
