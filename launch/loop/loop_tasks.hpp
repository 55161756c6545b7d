#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "launch/loop/own_state.hpp"
#include "launch/loop/rank.hpp"
#include "launch/loop/run_checkpoints.hpp"
#include "launch/loop/validation.hpp"

namespace troupe {

class Compute;
struct RankParts;

/// A program's tasks between two steps and at its loop's end: the program's own work, validation, checkpoints, and
/// gathering the trace. Compute's thread.
class LoopTasks {
 public:
  /// Both must outlive it.
  LoopTasks(Rank& rank, RankParts& parts);

  /// should_stop of a rank returned true, at this step or before.
  bool are_enough() const;

  /// As in Rank.
  void between_steps(std::function<void(std::int64_t)> work) { between_steps_ = std::move(work); }
  void claim_checkpoints();
  void keep_checkpoints(Optimizer& optimizer);
  void validate_on(std::shared_ptr<const Dataset> held_out, std::function<Loss(const Batch&)> loss);
  /// The data set given to it; nullptr: none yet.
  const Dataset* held_out() const noexcept { return validation_ ? &validation_->held_out() : nullptr; }

  bool keeps_checkpoints() const noexcept { return checkpoints_ != nullptr; }
  /// Before a loop. Throws Error(usage) if the config has validate_only, and there is no model or no data for it; and
  /// if it asks for checkpoints, and the program keeps none.
  void check_before_loop() const;
  /// In a loop whose batches do not come from Troupe. Throws Error(usage) if the program keeps checkpoints or
  /// validates: such a loop has no place between two steps for them.
  void check_own_batches() const;
  /// Collective, at the end of a step.
  void gather_trace_if_due();
  /// Collective, before the loop gets a batch: does the due tasks. Nothing within a step.
  void run();
  /// Collective. False: the loss of a rank took all back to a snapshot meanwhile, and the steps from there on are run
  /// again. Throws when it interrupts: then all ranks must check again whether the loop is over.
  bool end_of_steps();
  /// Runs `work`. If too few ranks are left in it, the committed state goes to disk, without the others, while the
  /// program still holds model and optimizer.
  template <class Work>
  auto saving_if_parked(Work&& work) {
    try {
      return work();
    } catch (const Error& error) {
      save_if_parked(error);
      throw;
    }
  }
  /// The loop is over: waits for a save that is under way, and for the command after_save if the loop ended `well`.
  void end(bool well) noexcept;

 private:
  void check_validation() const;
  void check_checkpoints() const;
  /// Their numbers are in checkpoints. All ranks do these together between two steps, and after the last one, in this
  /// order, in every loop through a loader. If the loss of a rank interrupts one, all ranks do it again, the newcomer
  /// too, and those after it; those before it are done.
  enum Task : std::uint8_t {
    trace,       ///< gathering it
    program,     ///< the program's own work (Rank::between_steps)
    epoch,       ///< Callbacks::on_epoch
    validation,  ///< of an epoch's end
    stop,        ///< Callbacks::should_stop
    save,
    last_validation,
    last_save
  };
  /// Does the due ones from `first` to `last`. False: a signal cut one off; the resumed run does it and those after it.
  /// Throws their errors; then all ranks must come here again.
  bool perform(Task first, Task last);
  bool perform(Task task);
  /// For a checkpoint that is written now.
  RunCheckpoints::Position position_to_save() const;
  DueTasks due() const;
  /// How many tasks of this step the resumed run had done; 0: it is not the step of its checkpoint.
  struct DoneBefore {
    int again = 0;  ///< ... of which this many are not done again
    int all = 0;
  };
  DoneBefore done_before() const;
  bool validates_last() const;
  void refuse_late(const char* call, bool called) const;
  bool is_best() const;
  bool validate(std::int64_t epoch, Task task);
  void note_if_best(ValidationReport& report);
  void ask_to_stop();
  bool saves_now() const;
  bool saved_now() const;
  void write_checkpoint();
  void save_if_parked(const Error& error);
  void report_end(const std::string& checkpoint);
  void report_after_save(bool wait);

  Rank& rank_;
  RankParts& parts_;
  const Config& config_;
  Compute& compute_;
  std::function<void(std::int64_t)> between_steps_;
  std::unique_ptr<RunCheckpoints> checkpoints_;
  std::shared_ptr<FolderLock> checkpoint_lock_;  // until checkpoints are kept
  std::unique_ptr<Validation> validation_;
};

}  // namespace troupe
