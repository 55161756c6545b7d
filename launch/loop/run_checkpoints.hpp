#pragma once
#include <caf/all.hpp>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/loop/after_save.hpp"
#include "launch/loop/data_position.hpp"
#include "launch/loop/rank.hpp"
#include "launch/process/still_saving.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/checkpoint/snapshot.hpp"

namespace troupe {

struct RankParts;

/// Checkpoints of a run on one rank: takes its part of the state, hands it to the rank's Checkpointer actor (one save
/// under way at a time), brings it back on resume. Compute's thread.
class RunCheckpoints {
 public:
  /// `lock`: of the checkpoints' folder, on the rank 0 with which the job began.
  RunCheckpoints(Rank& rank, Optimizer& optimizer, std::shared_ptr<FolderLock> lock = {});
  /// Waits for a save that is under way.
  ~RunCheckpoints();

  struct Position {
    std::int64_t epoch = 0, step_in_epoch = 0;
    std::int64_t round = 0;                  ///< of a loop over uneven batches: step_in_epoch as it was saved
    DataFacts data;                          ///< of the epoch
    std::optional<std::int64_t> tasks_done;  ///< of LoopTasks, at this step; nothing: an older checkpoint
    bool enough = false;                     ///< Callbacks::should_stop ended the run
  };
  /// Collective. Every rank reads its part of the checkpoint that `selector` means, see choose_checkpoint; `log` gets
  /// refused ones. Throws on all ranks if none is good for all.
  Position resume(const std::string& selector, const std::function<void(const std::string&)>& log);
  /// Collective. A copy now, the disk in the background. Waits for the save before it.
  void save(const Position& position, bool best);
  /// Collective, after a validation: waits for a save that decides whether `report` is the best. Then
  /// BestValidation::saved is the same on all ranks.
  void settle_best(const ValidationReport& report);
  /// Not collective: this rank alone, when there are no others any more. Waits for the disk. Saves nothing, and reports
  /// that, if the others held a part of the state, or have gone on without this rank and saved a later step.
  void save_alone(const Position& position, bool best);
  /// Whether the save that is under way has ended by now; waits for nothing.
  void look();
  /// Collective. Waits until all saves are on disk. Calls `again`, on all ranks, if the last save failed
  /// because a rank was lost, or, once, because the disk refused it. Returns the last path. A failed save is
  /// printed.
  std::string finish(const std::function<void()>& again = {});
  /// The ends of the command after_save, since the last call; `wait`: until it runs no more. On rank 0.
  std::vector<AfterSaveEnd> after_save_ends(bool wait);
  const std::optional<ErrorReport>& failure() const noexcept { return failure_; }  ///< of the last save

 private:
  void start_checkpointer(const SaveAttempt& first, bool publishes);
  SaveAttempt next_attempt();
  void send(const Position& position, const SaveAttempt& attempt, bool best, int rank, int ranks,
            std::vector<TensorPart> parts);
  std::string own_state(const Position& position) const;
  std::map<std::string, std::string> metadata(const Position& position) const;
  void agree_on_best();
  bool await(bool copied, std::chrono::seconds at_most = kStillSavingEvery);
  void await_end();

  Rank& rank_;
  RankParts& parts_;
  Optimizer& optimizer_;
  std::shared_ptr<FolderLock> lock_;
  std::shared_ptr<AfterSave> after_save_;  // nullptr: no command
  caf::actor checkpointer_;
  Snapshot snapshot_;  // the data of the save under way
  int saves_ = 0;
  bool under_way_ = false, best_ = false, lost_ = false;  // best_: the save under way is of the best validation
  bool alone_ = false;                                    // no other rank says how a save ended
  std::string last_path_;
  std::optional<std::int64_t> latest_;  // that this rank knows of
  std::optional<ErrorReport> failure_;
};

}  // namespace troupe
