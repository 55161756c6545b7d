#pragma once
#include <caf/all.hpp>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "actors/coordinator/membership_plan.hpp"
#include "actors/rank/rank_supervisor.hpp"

namespace troupe {

/// Messages that a part of the coordinator sends to ranks, in this order.
using RankMessages = std::vector<
    std::pair<RankSupervisorActor, std::variant<PublishCheckpoint, SaveEnded, LeaveLoop, LeaveJob, InterruptRanks>>>;

/// A process that has joined the job.
struct JoinedProcess {
  RankSupervisorActor supervisor;
  JoinJob joined;
  bool member = false;
  bool fenced = false;
  bool hurt = false;                                 ///< on purpose: its death does not count
  std::int64_t steps_done = 0, steps_at_first = -1;  ///< of the job, by the newest and the first heartbeat
  std::optional<ErrorReport> ended;
  std::optional<RankInterrupted> interrupted;  ///< in this generation
  std::optional<LoopDone> loop_done;           ///< in this generation
  bool may_leave = false;                      ///< the loop; it was informed

  /// In this life. It may say 0 before it has healed.
  std::int64_t steps_made() const noexcept {
    return steps_at_first < 0 ? 0 : std::max<std::int64_t>(0, steps_done - steps_at_first);
  }
  void made(std::int64_t steps) noexcept {
    steps_done = steps;
    if (steps_at_first < 0) steps_at_first = steps;
  }
  bool is_active() const noexcept { return !ended && !fenced; }
};

/// The processes that have joined, one for each slot, and the current membership. A value; sends nothing.
class ProcessTable {
 public:
  /// Takes the place of the life before in the same slot.
  void add(JoinedProcess process);
  /// This very process; null: it has not joined, or another life has its slot.
  const JoinedProcess* find(const ProcessId& process) const;
  JoinedProcess* find(const ProcessId& process) { return writable(std::as_const(*this).find(process)); }
  /// The newest life in a slot; null: none yet.
  const JoinedProcess* in_slot(int slot) const;
  JoinedProcess* in_slot(int slot) { return writable(std::as_const(*this).in_slot(slot)); }
  const std::map<int, JoinedProcess>& all() const noexcept { return processes_; }  ///< by slot
  bool knows(const caf::actor_addr& address) const { return slot_of_address_.contains(address); }
  /// The slot whose supervisor this is; nullopt: of no process that is connected.
  std::optional<int> slot_of(const caf::strong_actor_ptr& supervisor) const;
  /// Forgets a supervisor's address, and returns its slot; nullopt: the address is not known.
  std::optional<int> take_address(const caf::actor_addr& address);

  const Membership& current() const noexcept { return current_; }
  /// The next generation begins: no process is interrupted in it yet. `parted`: members of the one before leave.
  void make_current(Membership next, bool parted = false);
  /// The membership that has made saves of this generation: the current one, or the one before if members left it.
  const Membership& that_saves(std::uint64_t generation) const noexcept {
    return generation == parted_.generation ? parted_ : current_;
  }
  /// -1: not a member.
  int member_rank(const ProcessId& process) const;
  /// A slot's rank, or its number if there is no member in it.
  int rank_of(int slot) const;
  /// Whether it joins as a member of the current membership. It may have missed the last announcement: a coordinator
  /// may die between writing it down and making it.
  bool is_member(const JoinJob& join) const;
  /// Why a process can't join beside the others; empty: it can. `knows_more`: it may be a member of a membership that
  /// is not known here.
  std::string refusal(const JoinJob& join, bool knows_more = false) const;

  /// Puts the members that have not ended, and the processes that could become members, into a question. Returns the
  /// ranks that have ended well.
  std::vector<int> describe(MembershipQuestion& question) const;
  /// Whether there are members, and all have ended.
  bool all_ended() const;
  /// A member waits at the end of its loop. Drops a message of another generation.
  void loop_done(const LoopDone& done);
  /// Members that wait there may leave once all members have come to it, after the same steps, or have ended.
  RankMessages leave_loop();

 private:
  static JoinedProcess* writable(const JoinedProcess* process) { return const_cast<JoinedProcess*>(process); }

  std::map<int, JoinedProcess> processes_;          // by slot
  std::map<caf::actor_addr, int> slot_of_address_;  // of the connected ones
  Membership current_, parted_;
  std::map<int, int> rank_by_slot_;  // of its members
};

}  // namespace troupe
