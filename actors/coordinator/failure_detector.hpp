#pragma once
#include <chrono>
#include <map>

#include "actors/coordinator/recovery_options.hpp"

namespace troupe {

/// Finds silent processes, by slot. A value: it gets the time, and sends nothing.
class FailureDetector {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Judgement {
    bool suspected = false;               ///< for the first time since the process was last heard
    bool lost = false;                    ///< silent for so long that the process is to be fenced
    std::chrono::milliseconds silent{0};  ///< for how long
  };

  FailureDetector() = default;
  FailureDetector(const RecoveryOptions& recovery, Time now) : recovery_(recovery), last_tick_(now) {}

  /// A new life begins in this slot.
  void joined(int slot, Time now) { lives_[slot] = {now, false}; }
  void heard(int slot, Time now) { lives_[slot].heard = now; }
  /// Ends a suspicion. True: there was one.
  bool clear_suspicion(int slot);
  /// To be called at every tick of the coordinator. After a long gap all count as heard: the coordinator was held up.
  void tick(Time now);
  /// Whether the coordinator is to send a beat in this tick.
  bool beat_is_due() const noexcept { return ticks_ % 5 == 0; }
  Judgement judge(int slot, Time now);

 private:
  struct Life {
    Time heard;
    bool suspected = false;
  };
  RecoveryOptions recovery_;
  Time last_tick_;
  int ticks_ = 0;
  std::map<int, Life> lives_;
};

}  // namespace troupe
