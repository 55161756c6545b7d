#pragma once
#include <functional>
#include <vector>

#include "actors/coordinator/coordinator.hpp"
#include "actors/simulator/fault.hpp"
#include "actors/simulator/world.hpp"

namespace troupe::simulator {

class Job;

/// The model of the launcher, as far as it keeps the coordinator going: it starts a real coordinator, and the next one
/// when that has died. The next one takes over from the run folder's journal.
class LauncherModel {
 public:
  explicit LauncherModel(Job& job) : job_(job) {}
  /// Starts a coordinator with an empty journal.
  void begin_job();
  /// The next one starts soon.
  void kill_coordinator();
  /// With the job's start.
  void end_coordinator();
  /// Kills the coordinator when it writes a generation, as the fault says.
  void kill_at_journal(const Fault& fault) { at_journal_.push_back(fault); }
  void fill_run_disk() noexcept { disk_full_ = true; }

  Process& coordinator() noexcept { return *coordinator_; }
  /// Null while there is none.
  CoordinatorState* coordinator_state() noexcept { return coordinator_ && coordinator_->alive ? state_ : nullptr; }
  bool has_journal() const noexcept { return !journal_.empty(); }
  /// Tries 20 times a second, as a process does that does not know when the next coordinator comes. `found` gets a
  /// proxy, or null when `patience` is over.
  void find_coordinator(Process& process, milliseconds patience, std::function<bool()> given_up,
                        std::function<void(caf::strong_actor_ptr)> found);

 private:
  void start_coordinator(int life);
  void record(const Membership& next);

  Job& job_;
  Process* coordinator_ = nullptr;
  CoordinatorState* state_ = nullptr;
  CoordinatorActor actor_;
  std::vector<Membership> journal_;
  std::vector<Fault> at_journal_;
  bool disk_full_ = false;
};

}  // namespace troupe::simulator
