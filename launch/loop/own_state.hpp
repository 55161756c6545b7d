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

/// The work between two steps: the tasks from `first` on. `all`: this process has done none that may change a state;
/// the run that it resumes may have.
struct DueTasks {
  int first = 0;
  bool all = true;
};

/// The program's states, by name: saved with a checkpoint, sent to newcomers, and taken back if the ranks go back. The
/// same on all ranks. Compute's thread.
class OwnState {
 public:
  explicit OwnState(Rank& rank) : rank_(rank) {}

  /// Throws Error(usage) for a name that is taken, or not possible in a checkpoint.
  void add(const std::string& name, OwnStateAccess access);
  bool empty() const noexcept { return states_.empty(); }

  /// Under their names in a checkpoint: `state.<name>`, `state.<name>.<tensor>`.
  NamedTensors tensors() const;
  /// Collective, before a save: throws Error(mismatch) if a rank holds other values than rank 0, and the strategy keeps
  /// all ranks' weights equal.
  void check_equal() const;
  /// Names, for a checkpoint's metadata.
  std::string names() const;
  /// Their values in a checkpoint, which `accept` makes theirs. `names`: of its metadata. `note` gets a sentence about
  /// a state that only the checkpoint or only the program has. Throws the reader's errors.
  struct Saved {
    std::set<std::string> names;
    NamedTensors tensors;
  };
  Saved read(const StateReader& saved, const std::string& names,
             const std::function<void(const std::string&)>& note) const;
  void accept(const Saved& saved);

  /// Collective, before the tasks between two steps: in a new generation newcomers get the states. If all have gone
  /// back to a snapshot, so do the states. If a due task has begun before, the states go back to their values before
  /// it.
  void settle(DueTasks due);
  /// Undoes the changes of a due task.
  void go_back(DueTasks due);
  /// This task between two steps may change them.
  void begin_task(int task);
  /// The tasks between two steps begin, with this one. Keeps a copy if all may go back to this step.
  void keep_if_needed(DueTasks due);

 private:
  bool goes_back() const;
  void take(const NamedTensors& tensors);
  void heal();

  Rank& rank_;
  std::map<std::string, OwnStateAccess> states_;
  bool has_ = false;                                          // a newcomer's: false before it got them
  std::uint64_t generation_ = 1;                              // in which they were settled
  std::uint64_t copied_in_ = 0;                               // generation
  std::deque<std::pair<std::int64_t, NamedTensors>> copies_;  // by steps done: the last two
  std::int64_t tasks_of_ = -1;                                // steps done
  std::map<int, NamedTensors> before_tasks_;                  // of those between these two steps that have begun
};

}  // namespace troupe
