#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/messages/membership.hpp"
#include "actors/messages/messages.hpp"

namespace troupe {

/// One try to save, as the coordinator sees it: a two-phase commit. First every rank writes its part. Then one of them
/// makes a checkpoint of the parts; if it dies meanwhile, the next one does. A save fails with the first part that
/// can't be written: the disk is full, or the rank was lost before. A value; decides, sends nothing.
class SaveRound {
 public:
  /// `members`: the processes that write, by rank.
  SaveRound(SaveAttempt attempt, std::vector<ProcessId> members, bool best);

  void written(const PartSaved& part);
  void published(const SaveEnded& ended);
  void lost(const ProcessId& process, const std::string& why);
  /// Ends the save, unless it has ended. `rank`: the one at fault, or -1.
  void fail(int rank, const std::string& cause);
  /// A rank that leaves the generation before it has begun its part never writes it. It begins another save in the next
  /// one, and waits there for the ranks that have begun this one.
  void interrupted(const RankInterrupted& report);
  /// It is back over another connection; it may have been taken for lost. If it was to publish, the order or its answer
  /// may be lost with the old connection. It gets the order again, which does no harm.
  void came_back(const ProcessId& process);

  enum class Action { wait, publish, end };
  struct Decision {
    Action action = Action::wait;
    ProcessId publisher;  ///< of publish
    SaveEnded ended;      ///< of end
  };
  /// The action that is due now. `publish` once for each publisher.
  Decision decide();

  const SaveAttempt& attempt() const noexcept { return attempt_; }
  PublishCheckpoint order() const { return {attempt_, static_cast<std::int32_t>(members_.size()), best_}; }
  /// Ranks whose part is not there yet.
  std::vector<int> missing() const;

 private:
  int rank_of(const ProcessId& process) const;

  SaveAttempt attempt_;
  std::vector<ProcessId> members_;
  std::map<std::int32_t, int> rank_by_slot_;
  bool best_ = false;
  std::set<int> written_, lost_;
  int publisher_ = -1;
  std::optional<SaveEnded> outcome_;
};

}  // namespace troupe
