#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/messages/chaos.hpp"
#include "actors/rank/rank_supervisor.hpp"
#include "tensor_io/base/fault_point.hpp"

namespace troupe {

/// A fault that comes when a rank's thread comes to a place of fault_point.
struct PlacedFault {
  std::string place;
  std::int64_t step = 0;
  std::optional<ChaosKind> kind = ChaosKind::kill;  ///< nothing: `comes` alone
  std::chrono::milliseconds lasts{0};
  std::function<void()> comes = {};  ///< called as it comes, if not empty; waits for nothing
};

/// The process of a rank that shares one with others: it can be killed and stopped.
///
/// A thread can't be killed, but its life is visible to others only at a collective, a message or a file. So a kill
/// makes the supervisor silent and breaks the rank's communicators at once, and the rank's threads end by an exception
/// at the next such place. The proof of its death, RankExited, comes when they have ended. A stop holds up the
/// supervisor, and with it the heartbeats, and each thread at its next fault point. Any thread.
class SimulatedProcess final : public FaultWatch {
 public:
  /// `longer`: each step takes this much longer.
  explicit SimulatedProcess(ProcessId id, std::vector<PlacedFault> faults = {}, std::chrono::microseconds longer = {})
      : id_(id), longer_(longer), faults_(std::move(faults)) {}

  const ProcessId& id() const noexcept { return id_; }
  /// The effect of ChaosKind::leave: a notice of its agent to the coordinator.
  void on_leave(std::function<void()> leave) { leave_ = std::move(leave); }
  void set_supervisor(const RankSupervisorActor& supervisor);
  /// As hurt_this_process; on the supervisor's thread, which `stop` holds up.
  void hurt(ChaosKind kind, std::chrono::milliseconds lasts);
  void kill();
  bool killed() const;
  /// Waits while the process is stopped. Throws Error(fenced) in one that was killed.
  void at(const char* place, std::int64_t step) override;

 private:
  using Clock = std::chrono::steady_clock;
  void hold_up();
  Clock::time_point held_until(Clock::time_point now) const;

  const ProcessId id_;
  const std::chrono::microseconds longer_;
  std::function<void()> leave_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<PlacedFault> faults_;  // still to come
  RankSupervisorActor supervisor_;
  bool killed_ = false;
  std::int64_t last_forward_ = -1;  // the step of the last one
  Clock::time_point stopped_until_, slow_from_, slow_until_;
};

}  // namespace troupe
