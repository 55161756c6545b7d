#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/membership.hpp"

namespace troupe::simulator {

/// A rank's state: numbers in place of weights and of the optimizer's state, that every step changes in one way only.
struct ModelState {
  std::uint64_t weights = 1, moments = 1;
  bool operator==(const ModelState&) const = default;
};

/// Samples of a step, by their place in its batch: `first` and past the last.
struct Slice {
  std::int64_t first = 0, end = 0;
};

constexpr std::int64_t kGlobalBatch = 60;

/// The rank's share.
Slice slice_of(int rank, int world_size) noexcept;
/// A step's effect, by the samples that were in its gradient.
void apply_step(ModelState& state, std::int64_t step, std::uint64_t samples_hash) noexcept;
std::uint64_t hash_of_samples(std::int64_t step, const std::vector<Slice>& slices) noexcept;

/// A part of a checkpoint, and a checkpoint.
struct SavedPart {
  std::int64_t step = 0;
  ModelState state;
};
struct SavedCheckpoint {
  std::int64_t step = 0;
  int ranks = 1;
  std::map<int, SavedPart> parts;  // by rank
};

/// The record of a simulated job, checked against its promises. Every call may find a broken promise; the first one
/// stays.
///
/// - I1 A step is applied once per process, in order, and by all members of its generation that live on, or by none.
/// - I2 A step that is applied used each sample of its batch once.
/// - I3 The state after a step is the same wherever and however often it was computed.
/// - I4 Generations only grow, in the journal and on each rank; no rank goes on after a newer one was decided.
/// - I5 `latest` names whole checkpoints of one state only, and never goes back.
/// - I6 Every wait has a deadline; once the faults are over the job comes to its end.
/// - I7 Queues and tables are bounded.
class History {
 public:
  void journaled(const Membership& membership);
  void entered(const ProcessId& process, std::uint64_t generation);
  /// `committed_by`: the generation whose votes decided.
  void applied(const ProcessId& process, std::uint64_t generation, std::int64_t step, const std::vector<Slice>& slices,
               const ModelState& state);
  /// It got its state from others, or from a checkpoint.
  void took_state(const ProcessId& process, std::int64_t steps_done, const ModelState& state);
  /// `alone`: by a rank that parks.
  void published(const SavedCheckpoint& checkpoint, bool alone = false);
  /// All began anew from a checkpoint.
  void began_anew();
  void broken(const std::string& invariant, const std::string& what);

  const std::optional<std::string>& violation() const noexcept { return violation_; }
  std::int64_t furthest() const noexcept { return furthest_; }

 private:
  const ModelState& expected(std::int64_t steps_done);
  void check_state(const ProcessId& process, std::int64_t steps_done, const ModelState& state);

  std::vector<Membership> journal_;  // of this start of the job
  std::map<std::pair<std::int32_t, std::uint64_t>, std::int64_t> steps_done_;
  std::map<std::pair<std::int32_t, std::uint64_t>, std::uint64_t> generation_;
  std::vector<ModelState> expected_{ModelState{}};
  std::int64_t furthest_ = 0, latest_step_ = 0;
  std::optional<std::string> violation_;
};

}  // namespace troupe::simulator
