#pragma once
#include <set>
#include <utility>

#include "actors/coordinator/process_table.hpp"

namespace troupe {

/// After the coordinator was started again: the members of the journal's last membership that are back. Until all are
/// accounted for, the next membership can't be decided. A value; sends nothing.
class Resumption {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// A member that is not back.
  struct Missing {
    Member member;
    bool dead = false;  ///< as far as its agent knows; else it is late
  };

  /// `life`: how many coordinators the job had before. Its ranks may know a newer membership than the journal, and then
  /// theirs counts.
  explicit Resumption(int life = 0, bool without_journal = false)
      : life_(life), guesses_(life > 0 && without_journal) {}
  /// Members of the current membership that are not back at `deadline` are late.
  void begin(Time deadline) {
    pending_ = true;
    deadline_ = deadline;
  }
  /// Whether the process has a membership that is newer than the one that is known here.
  bool knows_less(const JoinJob& join, const Membership& current) const noexcept {
    return life_ > 0 && join.generation > current.generation;
  }
  /// A rank reports its membership. Returns whether it is newer than the one that is known here.
  bool is_news(const Membership& known, const Membership& current) noexcept {
    const bool news = life_ > 0 && known.generation > current.generation;
    guesses_ = guesses_ || news;
    return news;
  }
  /// Whether there may be memberships that are neither in a journal nor known to a process that is here.
  bool guesses() const noexcept { return guesses_; }
  /// How many numbers of generations to leave out. An earlier coordinator has announced them, but no journal has them,
  /// and a process that is not here may be in one of them.
  std::uint64_t leap() const noexcept { return guesses_ ? static_cast<std::uint64_t>(life_) : 0; }
  /// The slot of a process that has a newer membership and has not reported it yet; nullopt: there is none.
  std::optional<int> awaits(const ProcessTable& processes) const;

  bool pending() const noexcept { return pending_; }
  /// An agent reports the processes that it runs: members on its host that are not among them are dead.
  void heard_of(const JoinNode& node, const Membership& current);
  /// An agent saw this process end.
  void exited(const ProcessId& process, const ProcessTable& processes);
  /// Members that did not come back, once all are accounted for; nullopt: it is too early to say. Ends the resumption,
  /// so later calls return none.
  std::optional<std::vector<Missing>> settle(const ProcessTable& processes, Time now);
  std::size_t dead() const noexcept { return dead_.size(); }

 private:
  int life_ = 0;
  bool guesses_ = false;
  bool pending_ = false;
  Time deadline_;
  std::set<std::pair<std::int32_t, std::uint64_t>> dead_;  // processes that their agent does not run any more
};

}  // namespace troupe
