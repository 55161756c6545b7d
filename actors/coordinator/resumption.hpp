#pragma once
#include <set>

#include "actors/coordinator/process_table.hpp"

namespace troupe {

/// After the coordinator was started again: which members of the journal's last membership are back. Until all are
/// accounted for, nothing is to be decided about who goes on. A value; sends nothing.
class Resumption {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// A member that is not back.
  struct Missing {
    Member member;
    bool dead = false;  ///< for all that its agent knows; else it is late
  };

  /// Nothing is resumed.
  Resumption() = default;
  /// Members that are not back at `deadline` are late.
  explicit Resumption(Time deadline) : pending_(true), deadline_(deadline) {}

  bool pending() const noexcept { return pending_; }
  /// An agent says which processes it runs: members on its host that are not among them are dead.
  void heard_of(const JoinNode& node, const Membership& current);
  /// An agent saw this process end.
  void exited(const ProcessId& process, const ProcessTable& processes);
  /// Members that did not come back, once all are accounted for; nullopt: it is too early to say. Ends the resumption,
  /// so later calls return none.
  std::optional<std::vector<Missing>> settle(const ProcessTable& processes, Time now);
  std::size_t dead() const noexcept { return dead_.size(); }

 private:
  bool pending_ = false;
  Time deadline_;
  std::set<int> dead_;  // slots of members that their agent does not run any more
};

}  // namespace troupe
