#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages/membership.hpp"

namespace troupe {

/// The fate of the step that a rank was in when its generation ended.
enum class Rejoin : std::uint8_t {
  roll_back,  ///< its changes are undone and it runs again
  commit      ///< another rank committed the step that it voted on: it commits it too, by the group's votes
};

/// A rank's part in the steps of its group: the ranks that vote on them together in one generation. Only states: no
/// tensor, no message, no wait. Compute follows it, and so does the simulator's rank, which thus tests the code that
/// ships.
///
/// A generation: join; with newcomers, heal, and settle_optimizer before any use of the optimizer's state; distributed
/// once the model is there. A step: its gradients are reduced; vote; votes_came; end_step, committed or skipped.
/// Between two steps: the tasks (task_due, task_done), and saves. If it is interrupted anywhere, the rank sends
/// `interruption`, and leave_for says how it gets into the next group.
///
/// A call that is not due throws Error(internal).
class StepProtocol {
 public:
  explicit StepProtocol(ProcessId process) : process_(process), rank_(process.slot) {}

  /// Of the generation; before the first one the process's slot.
  int rank() const noexcept { return rank_; }
  /// Throws an error of this rank's step.
  [[noreturn]] void fail(ErrorCode code, const std::string& operation, const std::string& cause,
                         const std::string& remedy = {}) const;
  const Membership& group() const noexcept { return group_; }
  std::int64_t steps_done() const noexcept { return step_; }
  bool distributed() const noexcept { return distributed_; }
  /// Has all state that its group goes on from.
  bool whole() const noexcept { return whole_; }

  /// For the coordinator, which plans the next generation by it.
  RankInterrupted interruption(const ErrorReport& why, std::vector<std::int32_t> unreachable = {}) const;
  /// For the coordinator, when nothing is left to do. One rank may have seen the group's last collective succeed, and
  /// another one may have seen it fail. So none leaves the loop before the coordinator has this from all, and answers.
  LoopDone end_of_loop() const { return {process_, group_.generation, step_}; }
  bool may_leave(const LeaveLoop& answer) const {
    return answer.generation == group_.generation && answer.steps_done == step_;
  }
  /// The end of the step that this rank has not committed: as on the others, by the votes of `next`, or undone.
  /// `in_step`: an optimizer is at hand for a commit. Changes nothing; end_step follows a commit. Throws
  /// Error(internal) if this rank's state fits no other's.
  Rejoin leave_for(const Membership& next, bool in_step) const;
  /// Throws Error(fenced) if the group goes on without this process.
  void join(Membership next);

  /// The group has newcomers, and the model has not been given to them.
  bool must_heal() const noexcept { return heal_pending_; }
  void healed() noexcept { heal_pending_ = false; }
  /// ... and the optimizer's state has not.
  bool must_settle_optimizer() const noexcept { return optimizer_pending_; }
  void settled_optimizer();
  /// The model is on all ranks.
  void became_distributed();
  /// Some of this rank's state was found to be wrong: until settled_optimizer it can't give it to others.
  void lost_state() noexcept { whole_ = false; }
  /// All ranks have gone back to a snapshot, in which the state is whole.
  void went_back(std::int64_t step) noexcept;
  /// The state is now that of a checkpoint.
  void resumed(std::int64_t step) noexcept { step_ = step; }
  void keeps_snapshots(bool keeps) noexcept { goes_back_ = keeps; }

  /// Before the votes are exchanged: from now on another rank may commit the step.
  void vote();
  /// All ranks', in their order.
  void votes_came(std::string votes);
  /// Applied or skipped, by this generation's votes or the next one's.
  void end_step();

  /// Tasks between two steps are numbered from 0: whether number `index` is still to be done.
  bool task_due(int index) const noexcept { return tasks_done_ <= index; }
  void task_done(int index) noexcept { tasks_done_ = index + 1; }
  /// These ranks leave, between two steps: the others have what only these held. `interruption` follows.
  void part(const std::vector<int>& leaving);
  bool parted() const noexcept { return parted_; }
  /// This rank's part of the save with this id is on its way. An interruption before this ends that save for all.
  void begins_save(std::string id) { save_begun_ = std::move(id); }

 private:
  void expect(bool due, const char* call) const;

  ProcessId process_;
  Membership group_;
  int rank_;
  std::int64_t step_ = 0;
  std::int64_t voted_step_ = -1;  // in this generation
  std::int64_t votes_step_ = -1;
  std::string votes_;
  std::int32_t tasks_done_ = 0;
  std::string save_begun_;
  bool whole_ = true, distributed_ = false, goes_back_ = false;
  bool heal_pending_ = false, optimizer_pending_ = false;
  bool parted_ = false, leaves_ = false;  // in this generation
};

}  // namespace troupe
