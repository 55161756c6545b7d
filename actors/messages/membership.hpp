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

/// Who trains now, by rank, and where they go on. Announced by the coordinator, the same to all; generations only grow.
struct Membership {
  std::uint64_t generation = 0;
  std::vector<Member> members;   // by rank
  std::int64_t resume_step = 0;  // the step that runs next
  std::int32_t tasks_done = 0;   // of what comes between the step before and that one (validation, saving)
  std::string votes;   // of step resume_step - 1, all ranks' of the generation before, if anybody saw them: who did not
                       // commits by them
  std::string reason;  // one sentence

  int world_size() const noexcept { return static_cast<int>(members.size()); }
  int rank_of(const ProcessId& process) const noexcept;  ///< -1: not a member
  bool has_newcomers() const noexcept;
  /// It has all processes of `before`, and others: nobody was lost in between.
  bool only_adds_to(const Membership& before) const noexcept;
};

/// Where a survivor stands when its generation was interrupted.
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
  std::string why;                        ///< what interrupted it ...
  bool hung = false;                      ///< ... a collective in which somebody was missing for too long
  std::vector<std::int32_t> unreachable;  ///< ranks of that generation to which it got no data connection
  bool goes_back = false;                 ///< keeps snapshots: all ranks go back to one, wherever they stand
  std::string save;                       ///< id of the last save of which it has begun its part; empty: none yet
  bool parted = false;  ///< of itself, between two steps: what only the members hold that leave, others have now
  bool leaves = false;  ///< parted, and one of those; another may have had the notice too late for this step
};

/// Rank -> Coordinator: nothing is left to do in its training loop, and the rank waits for the others. It says so again
/// to a coordinator that was restarted.
struct LoopDone {
  ProcessId process;
  std::uint64_t generation = 0;
  std::int64_t steps_done = 0;
};
/// Coordinator -> ranks: all have said so, and leave it.
struct LeaveLoop {
  std::uint64_t generation = 0;
  std::int64_t steps_done = 0;
};

}  // namespace troupe
