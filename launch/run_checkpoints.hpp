#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "launch/rank.hpp"
#include "tensor_io/snapshot.hpp"

namespace troupe {

/// Checkpoints of a run on one rank: gathers the state, hands it to rank 0's Checkpointer actor (one save under way at a
/// time), brings it back on resume. Compute's thread.
class RunCheckpoints {
 public:
  RunCheckpoints(Rank& rank, torch::nn::Module& model, Optimizer& optimizer);
  /// Waits for a save that is under way.
  ~RunCheckpoints();

  struct Position {
    std::int64_t epoch = 0, step_in_epoch = 0;
    double best = -1;  ///< best held-out accuracy so far
  };
  /// Collective. Loads `selector` on rank 0 and gives it to all; refused checkpoints are told to `log`. Throws if none is good.
  Position resume(const std::string& selector, const std::function<void(const std::string&)>& log);
  /// Collective. A snapshot now, the disk in the background. Waits for the save before it.
  void save(const Position& position, bool best);
  /// Not collective: this rank alone, when there are no others any more. Waits for the disk. Saves nothing, and says so, where the others
  /// held a part of the state.
  void save_alone(const Position& position);
  /// Collective. Waits until what was saved is on disk. Returns the last path, on rank 0. A failed save is printed and remembered.
  std::string finish();
  const std::optional<ErrorReport>& failure() const noexcept { return failure_; }

 private:
  void load_replicated(const TrainingState& state);
  void start_checkpointer();
  void send(const Position& position, bool best, NamedTensors tensors, std::vector<std::string> rank_states);
  std::string own_state(const Position& position) const;
  /// Whether the save under way ended within `patience`.
  bool await(std::chrono::milliseconds patience);

  Rank& rank_;
  torch::nn::Module& model_;
  Optimizer& optimizer_;
  caf::actor checkpointer_;
  Snapshot snapshot_;  // what the save under way writes
  bool under_way_ = false;
  std::string last_path_;
  std::optional<ErrorReport> failure_;
};

}  // namespace troupe
