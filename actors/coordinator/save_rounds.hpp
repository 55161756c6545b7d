#pragma once
#include <chrono>
#include <deque>

#include "actors/coordinator/process_table.hpp"
#include "actors/coordinator/save_round.hpp"

namespace troupe {

/// The saves that are under way, and the last ones that have ended. It sends nothing: it returns the messages to send.
class SaveRounds {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The first part of a save begins its round. `resuming`: missing members may come back.
  RankMessages part_saved(const PartSaved& part, const ProcessTable& processes, bool resuming, Time now);
  RankMessages published(const SaveEnded& ended, const ProcessTable& processes);
  RankMessages interrupted(const RankInterrupted& report, const ProcessTable& processes);
  RankMessages lost(const ProcessId& process, const std::string& why, const ProcessTable& processes);
  RankMessages came_back(const ProcessId& process, const ProcessTable& processes);
  /// A line for each save that takes long, repeated after a minute.
  std::vector<std::string> slow(Time now);

  /// Whether the save with this id has not ended, as far as is known here.
  bool awaits(const std::string& id) const;
  std::size_t under_way() const noexcept { return saves_.size(); }
  std::size_t remembered() const noexcept { return ended_.size(); }

 private:
  struct Save {
    SaveRound round;
    Time told;
  };
  Save* find(const SaveAttempt& attempt);
  const SaveEnded* find_ended(const SaveAttempt& attempt) const;
  SaveRound first_part(const PartSaved& part, const ProcessTable& processes, bool resuming) const;
  /// The messages that all rounds want to send now.
  RankMessages decide(const ProcessTable& processes);
  void remember(const SaveEnded& ended);

  std::vector<Save> saves_;  // under way
  std::deque<SaveEnded> ended_;
};

}  // namespace troupe
