#pragma once
#include <map>
#include <string>
#include <vector>

#include "tensor_io/checkpoint/state_reader.hpp"
#include "tensor_io/layout/named_state.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

class Strategy;

/// Capability of a Strategy that saves more than the state that all ranks have alike, or saves it in another way;
/// ReplicatedState saves the others. Compute's thread.
class SavedState {
 public:
  /// Facts that a bit-equal resume needs (the bucket plan), and their return. load_state comes after attach. A resume
  /// adds `step`, the number of steps done.
  virtual std::map<std::string, std::string> state() { return {}; }
  /// Takes the facts that `state` returned; called after attach.
  virtual void load_state(const std::map<std::string, std::string>& /*state*/) {}
  /// Collective. This rank's part of the saved job: `model.<parameter or buffer>`, `optimizer.<parameter>.<moment>`.
  /// The parts of all ranks are disjoint and complete. They may be views of live tensors, which do not change before
  /// they are copied or written.
  virtual std::vector<TensorPart> state_parts(Optimizer& optimizer, int rank, int world_size) = 0;
  /// Reads this rank's part of a saved state. Not collective, so that one rank may find an error alone; once all have
  /// read, publish_state follows on all. Throws Error(mismatch) for a state of another model, and the reader's errors;
  /// a part of it may have been read then.
  virtual void read_state(const StateReader& state, Optimizer& optimizer) = 0;
  /// Collective: makes the read values visible to forward.
  virtual void publish_state() {}
  /// A rank alone does not have the job's state.
  virtual bool shards_state() const { return false; }

 protected:
  ~SavedState() = default;
};

/// For a strategy that leaves the whole state on every rank: a rank writes its part of the common state, and reads
/// everything.
class ReplicatedState final : public SavedState {
 public:
  explicit ReplicatedState(Strategy& strategy) : strategy_(strategy) {}
  std::vector<TensorPart> state_parts(Optimizer& optimizer, int rank, int world_size) override;
  void read_state(const StateReader& state, Optimizer& optimizer) override;

 private:
  Strategy& strategy_;
};

/// The state of every rank (this rank's, if replicas differ), under the names of checkpoints; live tensors.
NamedTensors replicated_state(Strategy& strategy, Optimizer& optimizer);

}  // namespace troupe
