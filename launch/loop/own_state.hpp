#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "launch/loop/own_state_access.hpp"
#include "launch/loop/rank.hpp"
#include "tensor_io/checkpoint/state_reader.hpp"

namespace troupe {

/// What is to be done between two steps: the tasks from `first` on. `all`: this process has done none that may change a
/// state; the run that this one goes on from may have.
struct DueTasks {
  int first = 0;
  bool all = true;
};

/// States of the program's own, by name: saved with a checkpoint, sent to newcomers, and taken back to where the ranks
/// go back to. The same on all ranks. Compute's thread.
class OwnState {
 public:
  explicit OwnState(Rank& rank) : rank_(rank) {}

  /// Throws Error(usage) for a name that is taken, or can't stand in a checkpoint.
  void add(const std::string& name, OwnStateAccess access);
  bool empty() const noexcept { return states_.empty(); }

  /// Under the names that a checkpoint has them by: `state.<name>`, `state.<name>.<tensor>`.
  NamedTensors tensors() const;
  /// Collective, before a save: throws Error(mismatch) where a rank holds other values than rank 0, if the strategy
  /// keeps all ranks' weights equal.
  void check_equal() const;
  /// Names, for a checkpoint's metadata.
  std::string names() const;
  /// What a checkpoint has of them, which `accept` makes theirs. `names`: of its metadata. `note` gets a sentence about
  /// a state that the checkpoint or the program has alone. Throws what the reader throws.
  struct Saved {
    std::set<std::string> names;
    NamedTensors tensors;
  };
  Saved read(const StateReader& saved, const std::string& names,
             const std::function<void(const std::string&)>& note) const;
  void accept(const Saved& saved);

  /// Collective, before what lies between two steps: in a new generation newcomers get the states. Where all have gone
  /// back to a snapshot the states go back with it, and where a task that is due has begun before, to what
  /// they were before it.
  void settle(DueTasks due);
  /// What a task that is due has changed is undone.
  void go_back(DueTasks due);
  /// This task between two steps may change them.
  void begin_task(int task);
  /// What lies between two steps begins, with this task. Of a step that all may go back to a copy is kept.
  void keep_if_needed(DueTasks due);

 private:
  bool goes_back() const;
  void take(const NamedTensors& tensors);
  void heal();

  Rank& rank_;
  std::map<std::string, OwnStateAccess> states_;
  bool has_ = false;                                          // a newcomer: not before it got them
  std::uint64_t generation_ = 1;                              // in which they were settled
  std::uint64_t copied_in_ = 0;                               // generation
  std::deque<std::pair<std::int64_t, NamedTensors>> copies_;  // by steps done: the last two
  std::int64_t tasks_of_ = -1;                                // steps done
  std::map<int, NamedTensors> before_tasks_;                  // of those between these two steps that have begun
};

}  // namespace troupe
