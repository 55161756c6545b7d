#include "launch/loop/loop_tasks.hpp"

#include <algorithm>
#include <utility>

#include "launch/loop/batch_source.hpp"
#include "launch/loop/console.hpp"
#include "launch/loop/rank_parts.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/formatted.hpp"
#include "launch/process/rank_lines.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/layers/module_modes.hpp"
#include "tensor_io/layout/state_texts.hpp"

namespace troupe {
namespace {

// Of Compute::notes.
constexpr const char* kEnough = "enough";    // steps done
constexpr const char* kResumed = "resumed";  // steps done, tasks that are not done again, tasks that were done

}  // namespace

LoopTasks::LoopTasks(Rank& rank, RankParts& parts)
    : rank_(rank), parts_(parts), config_(rank.config()), compute_(parts.system.compute()) {}

bool LoopTasks::perform(Task first, Task last) {
  for (int task = first; task <= last; ++task) {
    if (!compute_.task_due(task)) continue;
    if (!perform(static_cast<Task>(task))) return false;
    compute_.task_done(task);
  }
  return true;
}

DueTasks LoopTasks::due() const {
  int first = done_before().again;
  while (!compute_.task_due(first)) ++first;
  return {first, first <= std::max<int>(program, done_before().again)};  // gathering a trace changes no state
}

// In Compute's notes, which newcomers get with the model.
LoopTasks::DoneBefore LoopTasks::done_before() const {
  const auto resumed = wholes_in(compute_.notes(), kResumed);
  if (!resumed || resumed->at(0) != rank_.steps_done()) return {};
  return {static_cast<int>(resumed->at(1)), static_cast<int>(resumed->at(2))};
}

RunCheckpoints::Position LoopTasks::position_to_save() const {
  const auto& data = parts_.position;
  const auto cursor = data.cursor();
  const int done = std::max(due().first, done_before().all);
  return {cursor.epoch,
          cursor.step,
          0,
          data.source() != nullptr ? data.source()->facts() : DataFacts{},
          done == save ? save + 1 : std::min<int>(done, last_save),  // the save under way is no task of it
          are_enough()};
}

bool LoopTasks::perform(Task task) {
  const auto& position = parts_.position;
  switch (task) {
    case trace:
      if (!parts_.trace.gather(compute_, parts_.records)) return true;
      compute_.begin_step_time();
      parts_.times.begin_forward();
      return true;
    case program: {
      if (!between_steps_) return true;
      parts_.own_state.begin_task(task);
      ModuleModes modes(*parts_.model);
      between_steps_(rank_.steps_done());
      modes.forget();
      return true;
    }
    case epoch:
      if (!parts_.callbacks.on_epoch || !position.epoch_is_over()) return true;
      parts_.own_state.begin_task(task);
      parts_.callbacks.on_epoch(position.cursor().epoch - 1);
      return true;
    case validation:
      if (const auto epoch = position.cursor().epoch;
          position.epoch_is_over() && epoch % std::max<std::int64_t>(1, config_.validate_every) == 0)
        return validate(epoch - 1, task);
      return true;
    case stop: ask_to_stop(); return true;
    case save:
      if (saves_now() && done_before().all <= save) write_checkpoint();
      return true;
    case last_validation:
      if (done_before().all > last_validation) return true;
      if (config_.validate_only || !position.epoch_is_over())
        return validate(position.cursor().epoch - (position.epoch_is_over() ? 1 : 0), task);
      return true;
    case last_save:
      if (!saved_now() || validates_last()) write_checkpoint();
  }
  return true;
}

void LoopTasks::end(bool well) noexcept {
  try {
    if (well) report_after_save(true);
  } catch (const std::exception&) {  // no room for a line about it
  }
  checkpoints_.reset();
  validation_.reset();
}

// The step just done was the best one that was held out.
bool LoopTasks::is_best() const { return BestValidation::of(compute_).step == rank_.steps_done(); }

void LoopTasks::gather_trace_if_due() {
  if (!parts_.trace || compute_.micro_batch() != 0) return;
  rank_.retry([&] { perform(trace, trace); });
}

bool LoopTasks::validate(std::int64_t epoch, Task task) {
  if (!validation_) return true;
  if (rank_.stop_requested()) return false;
  auto report = validation_->run();
  parts_.records.begin();
  if (!report) return false;
  report->epoch = epoch;
  if (!config_.validate_only) note_if_best(*report);
  parts_.records.add(*report, validation_->held_out());
  if (config_.validate_only && !parts_.records.are_shown() && rank_.is_main()) print_line(validation_line(*report));
  fault_point("validated", rank_.steps_done());
  if (!parts_.callbacks.on_validation) return true;
  parts_.own_state.begin_task(task);
  parts_.callbacks.on_validation(*report);
  return true;
}

void LoopTasks::note_if_best(ValidationReport& report) {
  if (checkpoints_) checkpoints_->settle_best(report);
  report.best = is_best() || BestValidation::saved(compute_).is_beaten_by(report);
  if (!report.best) return;
  const BestValidation best{report.accuracy, report.loss, rank_.steps_done()};
  best.keep(compute_);
  if (!checkpoints_ || config_.save_every < 0) best.keep_saved(compute_);
}

// In Compute's notes, which newcomers get with the model. A rank that is not to be asked has none of the callbacks.
bool LoopTasks::are_enough() const {
  const auto step = whole_in(compute_.notes(), kEnough);
  return step && rank_.steps_done() >= *step;
}

void LoopTasks::ask_to_stop() {
  const auto& should_stop = parts_.callbacks.should_stop;
  const auto done = rank_.steps_done();
  const bool again = done_before().again > 0;
  if (!should_stop || !(again || parts_.position.epoch_is_over() || done % config_.log_interval == 0)) return;
  auto says = at::full({1}, should_stop() ? 1.0 : 0.0, at::kDouble);
  rank_.all_reduce(says, ReduceOp::max, "should_stop");
  if (says.item<double>() == 0) return;
  compute_.notes()[kEnough] = std::to_string(done);
  parts_.records.note("notice", (again ? "nothing is left to train: the program's should_stop ends the run at step "
                                       : "the program ends the run after step ") +
                                    std::to_string(done));
}

bool LoopTasks::saves_now() const {
  const auto done = rank_.steps_done();
  return is_best() || (config_.save_every > 0 && done > 0 && done % config_.save_every == 0);
}

// After the save of this step.
bool LoopTasks::validates_last() const {
  return validation_ && !parts_.position.epoch_is_over() && done_before().all <= last_validation;
}

bool LoopTasks::saved_now() const { return saves_now() && !compute_.task_due(save); }

void LoopTasks::write_checkpoint() {
  if (!checkpoints_ || config_.validate_only) return;
  const TraceSpan span("checkpoint", TraceEvent::Kind::phase);
  const auto started = std::chrono::steady_clock::now();
  checkpoints_->save(position_to_save(), is_best());
  parts_.records.add_checkpoint(milliseconds_since(started));
}

void LoopTasks::report_after_save(bool wait) {
  if (!checkpoints_) return;
  for (const auto& end : checkpoints_->after_save_ends(wait))
    parts_.records.report("after_save", (end.succeeded ? "" : "warning: ") + end.text);
}

void LoopTasks::run() {
  if (compute_.micro_batch() != 0 || config_.validate_only) return;
  report_after_save(false);
  if (rank_.steps_done() > 0) gather_trace_if_due();  // once more, where a rank was lost after it
  if (checkpoints_) checkpoints_->look();
  rank_.retry([&] {
    if (const int before = done_before().again; before > 0 && compute_.task_due(before - 1))
      compute_.task_done(before - 1);
    const auto tasks = due();
    parts_.own_state.settle(tasks);
    parts_.own_state.keep_if_needed(tasks);
    if (rank_.steps_done() > 0) (void)perform(program, save);
  });
}

bool LoopTasks::end_of_steps() {
  if (compute_.micro_batch() != 0) return true;
  const auto done = compute_.steps_done();
  compute_.settle();
  parts_.records.begin();
  run();
  if (compute_.steps_done() < done) return false;
  const bool cut_off = done > 0 && rank_.stop_requested() && compute_.task_due(stop);
  if ((cut_off || !perform(last_validation, last_save)) && !saved_now()) write_checkpoint();
  // No rank leaves before the others are done, and the last checkpoint is on disk: one that is lost meanwhile can still
  // be replaced.
  std::string checkpoint;
  if (checkpoints_ && !config_.validate_only) checkpoint = checkpoints_->finish([this] { write_checkpoint(); });
  fault_point("end", compute_.steps_done());
  compute_.leave_loop();
  compute_.task_done(last_save);  // another loop may follow, at this step, whose place in the data is another
  report_end(checkpoint);
  return true;
}

void LoopTasks::report_end(const std::string& checkpoint) {
  if (config_.validate_only) return;
  if (const auto done = rank_.steps_done(); done_before().again > 0 && !are_enough() && !rank_.stop_requested()) {
    const bool by_steps = config_.max_steps > 0 && done >= config_.max_steps;
    parts_.records.log("nothing is left to train: the run was finished at step " + std::to_string(done) + "; " +
                       (by_steps ? "raise --max_steps (" + std::to_string(config_.max_steps)
                                 : "raise --epochs (" + std::to_string(config_.epochs)) +
                       ") to go on");
  }
  if (const auto best = BestValidation::saved(compute_); validation_ && best.accuracy >= 0) {
    parts_.records.line(best.accuracy > 0 ? formatted("best held-out accuracy: %.2f%%", 100 * best.accuracy)
                                          : "best held-out loss: " + loss_text(best.loss));
  }
  if (!checkpoint.empty()) parts_.records.log("checkpoint: " + checkpoint);
  if (checkpoints_ && rank_.stop_requested()) {
    const bool saved = !checkpoint.empty() && !checkpoints_->failure();
    parts_.records.note("notice", "stopped by a signal after step " + std::to_string(rank_.steps_done()) +
                                      (saved ? "; continue with --resume latest" : ", which is not saved"));
  }
  if (checkpoints_ && checkpoints_->failure()) throw Error(*checkpoints_->failure());
}

void LoopTasks::claim_checkpoints() {
  if (config_.save_every < 0 || config_.validate_only || !rank_.is_main() || compute_.membership().generation > 1)
    return;
  const auto& directory = config_.checkpoint_dir;
  if (!checkpoint_lock_) checkpoint_lock_ = lock_directory(directory);
  if (!config_.resume.empty() || !parts_.system.options().begins) return;
  const auto others = list_checkpoints(directory);
  if (others.empty()) return;
  throw Error(ErrorCode::usage, "checkpoint_dir",
              displayable(directory, 200) + " holds another run's checkpoints, the newest of step " +
                  std::to_string(others.back().step),
              "continue it with --resume latest, or choose another --checkpoint_dir");
}

void LoopTasks::keep_checkpoints(Optimizer& optimizer) {
  refuse_late("keep_checkpoints", checkpoints_ != nullptr);
  claim_checkpoints();
  parts_.records.set_optimizer(optimizer);
  checkpoints_ = std::make_unique<RunCheckpoints>(rank_, optimizer, std::move(checkpoint_lock_));
  if (!config_.resume.empty() && rank_.steps_done() == 0) {
    rank_.retry([&] {
      const auto position =
          checkpoints_->resume(config_.resume, [this](const std::string& line) { parts_.records.log(line); });
      parts_.position.resume_at({position.epoch, position.step_in_epoch}, position.round, position.data);
      if (config_.validate_only) return;
      const auto done = position.tasks_done.value_or(save + 1);
      const auto again = position.enough ? std::min<std::int64_t>(done, stop) : done;  // should_stop is asked again
      compute_.notes()[kResumed] =
          std::to_string(rank_.steps_done()) + " " + std::to_string(again) + " " + std::to_string(done);
    });
  }
}

void LoopTasks::validate_on(std::shared_ptr<const Dataset> held_out, std::function<Loss(const Batch&)> loss) {
  refuse_late("validate_on", validation_ != nullptr);
  if (config_.validate_every > 0 || config_.validate_only)
    validation_ = std::make_unique<Validation>(rank_, *parts_.model, std::move(held_out), std::move(loss));
}

void LoopTasks::check_before_loop() const {
  parts_.position.refuse_second();
  check_validation();
  check_checkpoints();
}

void LoopTasks::check_own_batches() const {
  check_checkpoints();
  const bool saves = checkpoints_ && config_.save_every >= 0;  // else they were only loaded
  const char* call = saves ? "keep_checkpoints" : validation_ ? "validate_on" : nullptr;
  if (call == nullptr) return;
  throw Error(ErrorCode::usage, call,
              std::string("this program's loop does not take its batches from Troupe, so nothing would be ") +
                  (saves ? "saved" : "validated"),
              "take them from rank.loader or rank.uneven");
}

void LoopTasks::check_checkpoints() const {
  if (checkpoints_) return;
  const auto refuse = [](const char* setting, const std::string& cause, const std::string& remedy) {
    throw Error(ErrorCode::usage, setting, cause + "this program keeps no checkpoints",
                "call rank.keep_checkpoints(optimizer) before the loop" + remedy);
  };
  if (!config_.resume.empty()) refuse("resume", "resume is '" + config_.resume + "', and ", "");
  if (!config_.after_save.empty()) refuse("after_save", "", ", or leave it out");
  if (config_.save_every > 0 && config_.sources.contains("save_every") && !config_.as_begun.contains("save_every"))
    refuse("save_every", "save_every is " + std::to_string(config_.save_every) + ", and ", ", or leave it out");
}

void LoopTasks::check_validation() const {
  if (!config_.validate_only) return;
  if (config_.resume.empty() && config_.init_from.empty()) {  // `auto` found none
    throw Error(ErrorCode::usage, "validate_only", "there is no checkpoint, so no model to evaluate",
                "name one: --resume RUN@STEP, or --init_from FILE");
  }
  if (!validation_) {
    throw Error(ErrorCode::usage, "validate_only", "this program has no held-out data",
                "give it some: job.data's held_out, or rank.validate_on before the loop");
  }
}

void LoopTasks::refuse_late(const char* call, bool called) const {
  if (!parts_.model)
    throw Error(ErrorCode::usage, call, "no model was distributed", "call rank.distribute(model) before it");
  if (called) throw Error(ErrorCode::usage, call, "it was called before", "call it once, for the whole loop");
  if (parts_.position.source() != nullptr)
    throw Error(ErrorCode::usage, call, "the loader has begun", "call it before rank.loader(dataset)");
}

void LoopTasks::save_if_parked(const Error& error) {
  if (checkpoints_ && !config_.validate_only && parts_.position.has_loop() && error.code() == ErrorCode::parked &&
      error.report().rank == rank_.rank()) {
    parts_.own_state.go_back(due());
    checkpoints_->save_alone(position_to_save(), is_best());
  }
}

}  // namespace troupe
