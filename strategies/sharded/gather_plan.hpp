#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace troupe {

/// The units of a phase in the order in which all ranks gather them, known before they are requested: what all of them
/// requested in the last phase, in the same order. Units are numbers from 0. Pure; the owner's lock guards it.
class GatherPlan {
 public:
  using Units = std::vector<std::int32_t>;

  /// `always`: units that come in each phase, requested or not. If there are any, a plan holds all of them.
  explicit GatherPlan(Units always) : always_(std::move(always)), units_(always_) {}

  const Units& units() const noexcept { return units_; }
  bool at_end() const noexcept { return position_ >= units_.size(); }
  /// The next one; only if it is not at the end.
  std::int32_t next() const { return units_[position_]; }
  std::int32_t take() { return units_[position_++]; }

  /// Compute has asked for it in this phase.
  void request(std::int32_t unit) { requested_.push_back(unit); }
  /// Of the requests so far, for a comparison with the other ranks'.
  std::int64_t hash_of_requests() const;

  /// The phase that begins is an evaluation: nothing is planned but `always`, and the plan of steps comes back after
  /// it.
  void begin_evaluation();
  /// The next phase begins. `all_alike`: all ranks had the same requests in this one.
  void end_phase(bool all_alike);

 private:
  const Units always_;
  Units units_, requested_;
  Units of_steps_;  // during an evaluation
  std::size_t position_ = 0;
  bool evaluation_ = false;
};

}  // namespace troupe
