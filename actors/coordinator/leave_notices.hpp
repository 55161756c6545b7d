#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/coordinator/process_table.hpp"
#include "actors/coordinator/save_rounds.hpp"

namespace troupe {

/// Processes that are to leave the job because their hosts want them gone, by slot, and how far each is. A member
/// leaves between two steps. It says so with its vote, all hand over what only it holds, and the next membership is
/// without it. A value; sends nothing.
class LeaveNotices {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `drill`: --chaos has drawn it, and its slot is filled again. Returns false if the notice is known.
  bool add(const LeaveNotice& notice, bool drill = false);
  /// Another process has the slot: the notice of the one before is void.
  void joined(const ProcessId& process);
  bool has(const ProcessId& process) const;
  /// It has ended. Returns whether another process is to take its slot.
  bool ended(const ProcessId& process);
  /// True: no process is to be started there.
  bool has_slot(int slot) const { return notices_.contains(slot); }
  /// Marks the survivors that leave, and removes the candidates that do.
  void mark(MembershipQuestion& question);

  /// Whether a member of the current membership was to leave.
  bool concern(const Membership& current) const;
  /// The requests to members that leave, in a generation that trains.
  RankMessages ask(const ProcessTable& processes) const;
  /// Processes that are members no longer, or never were: they are to end well now. A process with a part of a save
  /// under way stays for it, for `patience`.
  std::vector<ProcessId> due(const ProcessTable& processes, const SaveRounds& saves, Time now,
                             std::chrono::milliseconds patience);
  /// Why it leaves.
  ErrorReport reason(const ProcessId& process) const;

 private:
  struct Notice {
    LeaveNotice notice;
    bool drill = false;
    std::optional<Time> since;  // it is no member
    std::string save;           // the save whose part it has begun
  };
  std::map<int, Notice> notices_;  // by slot
};

}  // namespace troupe
