#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensor_io/base/error.hpp"

namespace troupe {

/// One life of one process in a slot.
struct ProcessId {
  std::int32_t slot = -1;
  std::uint64_t incarnation = 0;  ///< 0: not known, or not drawn yet
  bool operator==(const ProcessId&) const = default;
};

/// 64 random bits, never 0.
std::uint64_t random_incarnation();

struct Member {
  ProcessId process;
  std::string host;
  bool newcomer = false;  ///< gets the state from the others before its first step
};

/// The ranks that train now, and the step at which they go on. The coordinator announces it; generations only grow.
struct Membership {
  std::uint64_t generation = 0;
  std::vector<Member> members;   // by rank
  std::int64_t resume_step = 0;  // the step that runs next
  std::int32_t tasks_done = 0;   // of the tasks between the step before and that one (validation, saving)
  std::string votes;   // of step resume_step - 1, from all ranks of the generation before, if any rank saw them: a rank
                       // that did not commits by them
  std::string reason;  // one sentence

  int world_size() const noexcept { return static_cast<int>(members.size()); }
  int rank_of(const ProcessId& process) const noexcept;  ///< -1: not a member
  bool has_newcomers() const noexcept;
  /// It has all processes of `before`, and others: none was lost in between.
  bool only_adds_to(const Membership& before) const noexcept;
};

/// A survivor's place when its generation was interrupted.
struct RankInterrupted {
  ProcessId process;
  std::uint64_t generation = 0;
  std::int64_t steps_done = 0;            ///< committed
  std::int64_t voted_step = -1;           ///< the last step that it voted on: its gradients are reduced and still there
  std::int32_t tasks_done = 0;            ///< after the last committed step
  bool distributed = true;                ///< has a model, with the state of its optimizer or without it
  bool whole = true;                      ///< has all state; false for a newcomer whose heal was interrupted
  std::int64_t votes_step = -1;           ///< the last step of which it has all votes ...
  std::string votes;                      ///< ... and these
  std::string why;                        ///< the reason of the interruption ...
  bool hung = false;                      ///< ... a collective in which a rank was missing for too long
  std::vector<std::int32_t> unreachable;  ///< ranks of that generation to which it got no data connection
  bool goes_back = false;                 ///< keeps snapshots: all ranks go back to one, wherever they stand
  std::string save;                       ///< id of the last save of which it has begun its part; empty: none yet
  bool parted = false;  ///< by its own will, between two steps: the others have all that only leaving members held
  bool leaves = false;  ///< parted, and one of the leaving; another may have had the notice too late for this step
};

/// Rank -> Coordinator: nothing is left to do in its training loop, and the rank waits for the others. It repeats this
/// to a coordinator that was restarted.
struct LoopDone {
  ProcessId process;
  std::uint64_t generation = 0;
  std::int64_t steps_done = 0;
};
/// Coordinator -> ranks: all have reported LoopDone, and leave the loop.
struct LeaveLoop {
  std::uint64_t generation = 0;
  std::int64_t steps_done = 0;
};

}  // namespace troupe
