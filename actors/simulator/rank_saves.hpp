#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "actors/simulator/checkpointer_model.hpp"

namespace troupe::simulator {

/// A rank's saves, one at a time: the one whose end has not been heard, and what waits for it.
class RankSaves {
 public:
  std::string next_id(int start_of_job, std::uint64_t generation) {
    return std::to_string(start_of_job) + "-" + std::to_string(generation) + "-" + std::to_string(++named_);
  }
  void begin(const SaveAttempt& attempt) { under_way_ = attempt; }
  bool under_way() const noexcept { return under_way_.has_value(); }
  /// What waited for it; empty if nothing did, or if it is the end of another save.
  std::function<void()> end(const SaveAnswered& answer) {
    if (under_way_ != answer.attempt) return nullptr;
    under_way_.reset();
    lost_ = answer.report.code != ErrorCode::ok;
    return std::exchange(after_end_, nullptr);
  }
  void after_end(std::function<void()> then) { after_end_ = std::move(then); }
  void give_up_waiting() { after_end_ = nullptr; }
  /// Whether the last one has failed.
  bool lost() const noexcept { return lost_; }
  void forget_lost() noexcept { lost_ = false; }

 private:
  int named_ = 0;
  std::optional<SaveAttempt> under_way_;
  std::function<void()> after_end_;
  bool lost_ = false;
};

}  // namespace troupe::simulator
