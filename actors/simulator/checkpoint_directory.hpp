#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>

#include "actors/messages/messages.hpp"
#include "actors/simulator/history.hpp"
#include "actors/simulator/world.hpp"

namespace troupe::simulator {

struct SavePart;

/// The model of a job's checkpoint directory: parts that ranks have written, the lock of the process that publishes,
/// and the checkpoint that `latest` names. It outlives all processes and each start of the job.
class CheckpointDirectory {
 public:
  CheckpointDirectory(World& world, History& history) : world_(world), history_(history) {}
  /// The next part of this slot's rank can't be written.
  void fill_disk(int slot) { full_disks_.insert(slot); }
  bool write(const SavePart& save, int slot);  ///< false: the disk is full
  bool lock(const Process& process);           ///< false: another one holds it
  void unlock() noexcept { publisher_ = nullptr; }
  ErrorReport publish(const SaveAttempt& attempt, int ranks, const Process& process);
  void give_up(const SaveAttempt& attempt);  ///< its parts are deleted
  /// The whole state, by a rank that parks.
  void save_alone(std::int64_t step, const ModelState& state, const Process& process);
  /// Null before the first one.
  const SavedCheckpoint* latest() const noexcept { return latest_ ? &*latest_ : nullptr; }

 private:
  World& world_;
  History& history_;
  std::set<int> full_disks_;                      // slots
  std::map<std::string, SavedCheckpoint> saves_;  // by attempt
  std::optional<SavedCheckpoint> latest_;
  const Process* publisher_ = nullptr;  // holds the lock
};

}  // namespace troupe::simulator
