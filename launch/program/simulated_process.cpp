#include "launch/program/simulated_process.hpp"

#include <algorithm>
#include <string_view>
#include <thread>

namespace troupe {
namespace {

constexpr std::chrono::milliseconds kTurn{50};  // as hurt_this_process

}  // namespace

void SimulatedProcess::set_supervisor(const RankSupervisorActor& supervisor) {
  bool dead = false;
  {
    std::lock_guard lock(mutex_);
    supervisor_ = supervisor;
    dead = killed_;
  }
  if (dead) kill();
}

void SimulatedProcess::kill() {
  std::lock_guard lock(mutex_);
  killed_ = true;
  if (supervisor_) caf::anon_send(supervisor_, FenceRank{id_, "it was killed"});
  changed_.notify_all();
}

bool SimulatedProcess::killed() const {
  std::lock_guard lock(mutex_);
  return killed_;
}

void SimulatedProcess::hurt(ChaosKind kind, std::chrono::milliseconds lasts) {
  if (kind == ChaosKind::kill) return kill();
  {
    std::lock_guard lock(mutex_);
    if (kind == ChaosKind::stop) stopped_until_ = std::max(stopped_until_, Clock::now() + lasts);
    if (kind == ChaosKind::slow) {
      slow_from_ = Clock::now();
      slow_until_ = slow_from_ + lasts;
    }
  }
  if (kind == ChaosKind::stop) hold_up();
}

void SimulatedProcess::at(const char* place, std::int64_t step) {
  bool dies = false, takes_longer = false;
  {
    std::lock_guard lock(mutex_);
    if (std::string_view(place) == "forward") takes_longer = std::exchange(last_forward_, step) != step;
    for (auto fault = faults_.begin(); fault != faults_.end();) {
      if (fault->step != step || fault->place != place) {
        ++fault;
        continue;
      }
      if (fault->comes) fault->comes();
      dies = dies || fault->kind == ChaosKind::kill;
      if (fault->kind == ChaosKind::stop) stopped_until_ = Clock::now() + fault->lasts;
      if (fault->kind == ChaosKind::leave && leave_) leave_();
      if (fault->kind && fault->kind != ChaosKind::kill && fault->kind != ChaosKind::leave)
        caf::anon_send(supervisor_, InjectFault{*fault->kind, fault->lasts.count()});
      fault = faults_.erase(fault);
    }
  }
  if (dies) kill();
  if (takes_longer && longer_.count() > 0) std::this_thread::sleep_for(longer_);
  hold_up();
  if (killed()) throw Error(ErrorReport{ErrorCode::fenced, id_.slot, "process", step, {}, "it was killed", {}});
}

void SimulatedProcess::hold_up() {
  std::unique_lock lock(mutex_);
  for (auto now = Clock::now(); !killed_; now = Clock::now()) {
    const auto until = held_until(now);
    if (until <= now) return;
    changed_.wait_until(lock, until);
  }
}

SimulatedProcess::Clock::time_point SimulatedProcess::held_until(Clock::time_point now) const {
  if (now < stopped_until_) return stopped_until_;
  if (now >= slow_until_) return now;
  const auto turn = (now - slow_from_) / kTurn;
  return turn % 2 == 0 ? slow_from_ + (turn + 1) * kTurn : now;
}

}  // namespace troupe
