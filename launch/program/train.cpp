#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>
#include <utility>

#include "launch/config/device_settings.hpp"
#include "launch/program/job.hpp"
#include "launch/rank/run_checkpoints.hpp"
#include "launch/rank/run_log.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/data/sampler.hpp"
#include "tensor_io/layers/module_modes.hpp"

namespace troupe {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// on_bad_sample skip puts another sample in a bad one's place, which is held out and counted itself.
Batch without_substitutes(Batch batch, std::span<const std::int64_t> asked) {
  if (!batch.index.defined()) return batch;
  const auto own = batch.index == torch::tensor(at::ArrayRef<std::int64_t>(asked.data(), asked.size()), at::kLong);
  if (own.all().item<bool>()) return batch;
  const auto rows = own.nonzero().flatten();
  for (auto* part : {&batch.input, &batch.target, &batch.index}) *part = part->index_select(0, rows);
  return batch;
}

/// Held-out loss and accuracy: every sample once, each rank a part, sums over all ranks.
ValidationReport validate(const Job& job, Rank& rank, torch::nn::Module& model, const Dataset& dataset) {
  const TraceSpan span("validation", TraceEvent::Kind::phase);
  const auto started = std::chrono::steady_clock::now();
  torch::NoGradGuard no_grad;
  const ModuleModes modes(model);
  model.eval();
  auto& strategy = rank.system().compute().strategy();
  strategy.begin_evaluation();
  auto sums = at::zeros({4}, at::kDouble);  // loss, what it is over, right, samples
  const auto shard = rank.system().compute().data_shard();
  const auto [first, last] = validation_part(dataset.size(), shard.index, shard.count);
  const auto share = std::max<std::int64_t>(1, rank.config().batch_size / shard.count);
  for (auto begin = first; begin < last; begin += share) {
    std::vector<std::int64_t> indices;
    for (auto i = begin; i < std::min(last, begin + share); ++i) indices.push_back(i);
    auto batch = without_substitutes(dataset.get_batch(indices, SampleContext{rank.config().seed, 0}), indices);
    if (batch.numel() == 0) continue;
    batch.counted = batch.numel();
    batch.input = batch.input.to(rank.device());
    batch.target = batch.target.to(rank.device());
    const auto autocast = rank.autocast();
    std::optional<Loss> loss;
    const bool mine = strategy.evaluate([&] { loss.emplace(job.loss(model, batch, rank.config())); });
    if (!mine) continue;  // another rank has the result
    const auto n = static_cast<double>(batch.numel());
    const auto value = loss->value.item<double>();
    const bool is_sum = loss->elements.has_value();
    sums += torch::tensor(
        {is_sum ? value : value * n, is_sum ? static_cast<double>(*loss->elements) : n, loss->correct.value(), n},
        torch::kFloat64);
  }
  strategy.end_evaluation();
  fault_point("validate", rank.steps_done());
  rank.all_reduce(sums, ReduceOp::sum, "validation");
  ValidationReport report;
  report.samples = sums[3].item<double>();
  report.loss = sums[0].item<double>() / std::max(1.0, sums[1].item<double>());
  report.accuracy = sums[2].item<double>() / std::max(1.0, report.samples);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return report;
}

/// The framework's own loop. A step is a transaction; what comes between two steps (validation, saving) is numbered, so
/// that after the loss of a rank all of them, the newcomer too, do again what one of them had not finished.
class TrainingLoop {
 public:
  TrainingLoop(const Job& job, Rank& rank) : job_(job), rank_(rank), config_(rank.config()), log_(rank) {
    rank_.keep_records(false);  // it does that itself
  }
  ~TrainingLoop() { rank_.on_trace({}); }
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  void run() {
    std::vector<std::string> early;  // of a newcomer, which has a lost step to tell of before
    rank_.on_trace([&](const std::string& line) { early.push_back(line); });
    set_up();
    rank_.on_trace([this](const std::string& line) { log_.note("trace", line, position_.epoch); });
    stream_.emplace(rank_.loader(data_.train));
    begun_ = std::chrono::steady_clock::now();
    begun_at_step_ = rank_.steps_done();
    if (rank_.is_main() && rank_.system().compute().membership().generation > 1) keep_lost_step();
    for (const auto& line : early) log_.note("trace", line, position_.epoch);
    log_.note_membership(stream_->cursor().epoch);
    do {
      run_steps();
    } while (!finish());
    stream_.reset();
    rank_.end_trace();
    tell_end();
  }

  /// The error that the run ends with.
  void fail(const std::string& error) { log_.fail(error); }

  /// Too few ranks are left: what is committed goes to disk, without the others.
  void save_before_parking(int writer) {
    if (model_ && checkpoints_ && rank_.rank() == writer) checkpoints_->save_alone(with_best());
  }

 private:
  void set_up() {
    check_device_settings(config_, rank_.device());
    model_ = rank_.distribute([this] { return job_.model(config_); });
    optimizer_ = job_.optimizer ? job_.optimizer(*model_, config_) : rank_.make_optimizer(*model_);
    data_ = job_.data(config_);
    checkpoints_.emplace(rank_, *optimizer_);
    auto& compute = rank_.system().compute();
    const bool joined_late = compute.membership().generation > 1;
    if (!joined_late) {
      log_.line("model: " + compute.strategy().describe() + "; " + std::to_string(rank_.world_size()) + " rank" +
                (rank_.world_size() == 1 ? "" : "s") + ", backend " + std::string(rank_.communicator().backend()) +
                (rank_.device().is_cpu() ? "" : ", device " + rank_.device().str()) + "; data: " + data_.train->name() +
                ", " + std::to_string(data_.train->size()) + " samples");
    }
    if (!config_.resume.empty() && compute.steps_done() == 0) {
      rank_.retry([&] {
        position_ = checkpoints_->resume(config_.resume, [&](const std::string& text) { log_.line(text); });
        rank_.set_cursor(position_.epoch, position_.step_in_epoch);
        set_best(position_.best);
      });
    }
    if (!joined_late) compute.section_done(Rank::kSaveSection);  // nothing to do before the first step
  }

  // The step that the others ended by the votes of a rank 0 that died before it could.
  void keep_lost_step() {
    auto last = rank_.system().compute().last_step();
    const auto done = rank_.system().compute().steps_done(), per_epoch = rank_.steps_per_epoch();
    if (!last || last->step + 1 != done) return;
    const auto epoch = (done - 1) / per_epoch;
    if (done % config_.log_interval == 0) {
      last->lr = optimizer_->first_rate(rank_.rate_for(*optimizer_, last->step));
      MetricsReport metrics{
          {}, epoch, config_.epochs, done, (done - 1) % per_epoch + 1, per_epoch, rank_.total_steps(), true};
      metrics.window.add(*last);
      log_.keep(metrics);
    }
    log_.note_if_skipped(*last, epoch);  // the log begins with what is kept by now
  }

  void run_steps() {
    for (;;) {
      between_steps();
      const auto batch = stream_->next();
      if (rank_.system().compute().section_due(
              Rank::kSaveSection)) {  // all went back to an earlier step while this rank waited for the batch
        stream_->rewind();
        continue;
      }
      if (!batch) return;
      if (!run_micro_batch(batch) || !batch->last_of_step) continue;
      const auto report = rank_.step(*optimizer_);
      if (report.pending) continue;
      for (const auto& notice : report.notices) log_.note("notice", notice, batch->epoch);
      tell_notices(*data_.train, batch->epoch);
      log_.note_membership(batch->epoch);
      if (report.repeat) {
        log_.line("step " + std::to_string(report.step) + " is run again: " + report.reason);
        continue;
      }
      show(report, *batch);
    }
  }

  // Each rank reads samples of its own: rank 0 tells on the console, the others in their logs.
  void tell_notices(const Dataset& data, std::int64_t epoch) {
    for (const auto& notice : data.take_notices()) {
      log_.note("bad sample", notice, epoch);
      if (!rank_.is_main()) std::fprintf(stderr, "rank %d: %s\n", rank_.rank(), notice.c_str());
    }
  }

  bool run_micro_batch(const std::shared_ptr<const Batch>& batch) {
    const auto loss_of = [&](const Batch& of) {
      const auto autocast = rank_.autocast();
      return job_.loss(*model_, of, config_);
    };
    try {
      if (rank_.orders_micro_batches() || rank_.system().compute().uses_graphs()) {
        if (batch->micro_batch == 0)
          of_step_.clear();  // the step before, or this one where the loss of a rank has interrupted it
        of_step_.push_back(batch);
        if (batch->last_of_step) {
          rank_.run_micro_batches(of_step_, loss_of);
        }
        return true;
      }
      rank_.backward(loss_of(*batch));
      return true;
    } catch (const Error& error) {  // a collective in forward or backward
      rank_.recover(error);
      return false;
    }
  }

  void show(const StepReport& report, const Batch& batch) {
    window_.add(report);
    window_.validation_ms += std::exchange(validation_ms_, 0);
    window_.checkpoint_ms += std::exchange(checkpoint_ms_, 0);
    bar_window_.add(report);
    log_.note_if_skipped(report, batch.epoch);
    const auto done = rank_.system().compute().steps_done();
    MetricsReport metrics{
        {}, batch.epoch, config_.epochs, done, batch.step + 1, rank_.steps_per_epoch(), rank_.total_steps(), true};
    metrics.world_size = rank_.world_size();
    metrics.tokens_per_sample = data_.train->tokens_per_sample();
    metrics.seconds_left = seconds_left(done);
    if (done % config_.log_interval == 0) {
      metrics.window = window_;
      log_.send(metrics);
      window_ = bar_window_ = {};
    } else if (log_.has_bar() && std::chrono::steady_clock::now() - last_bar_ > std::chrono::milliseconds(100)) {
      last_bar_ = std::chrono::steady_clock::now();
      metrics.window = bar_window_;
      metrics.log = false;
      log_.send(metrics);
    }
  }

  // At the pace since the loop began, validations and saves included.
  double seconds_left(std::int64_t done) {
    const auto elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
    const auto steps = done - begun_at_step_;
    return steps > 0 ? elapsed / static_cast<double>(steps) * static_cast<double>(rank_.total_steps() - done) : -1;
  }

  bool epoch_is_over() const { return position_.step_in_epoch == 0 && position_.epoch > 0; }
  bool validates() const { return data_.held_out && config_.validate_every > 0; }
  bool saves_now() const {
    const auto done = rank_.system().compute().steps_done();
    return is_best() || (config_.save_every > 0 && done > 0 && done % config_.save_every == 0);
  }

  void between_steps() {
    auto& compute = rank_.system().compute();
    rank_.gather_trace_if_due();  // once more, where a rank was lost after it
    rank_.retry([&] {
      rank_.run_program_task();
      position_ = {stream_->cursor().epoch, stream_->cursor().step,
                   -1};  // another one if the loss of a rank took all back
      if (compute.section_due(Rank::kValidationSection)) {
        if (validates() && epoch_is_over() && position_.epoch % config_.validate_every == 0) {
          const auto started = std::chrono::steady_clock::now();
          hold_out(position_.epoch - 1, true);
          validation_ms_ += milliseconds_since(started);
        }
        compute.section_done(Rank::kValidationSection);
      }
      if (compute.section_due(Rank::kSaveSection)) {
        const auto started = std::chrono::steady_clock::now();
        if (saves_now()) {
          const TraceSpan span("checkpoint", TraceEvent::Kind::phase);
          checkpoints_->save(with_best(), is_best());
        }
        checkpoint_ms_ += milliseconds_since(started);
        compute.section_done(Rank::kSaveSection);
      }
    });
  }

  // False where the loss of a rank took all back to a snapshot meanwhile: the steps from there on are run again.
  bool finish() {
    auto& compute = rank_.system().compute();
    const auto done = compute.steps_done();
    return rank_.retry([&] {
      between_steps();
      if (compute.steps_done() < done) return false;
      if (compute.section_due(Rank::kLastValidationSection)) {
        if (validates() && !epoch_is_over() && !rank_.stop_requested()) hold_out(position_.epoch, false);
        compute.section_done(Rank::kLastValidationSection);
      }
      if (compute.section_due(Rank::kLastSaveSection)) {
        if (!saves_now()) checkpoints_->save(with_best(), false);
        compute.section_done(Rank::kLastSaveSection);
      }
      // Nobody leaves before the last checkpoint is on disk, so that a rank lost while writing it can still be
      // replaced.
      path_ = checkpoints_->finish([this] { checkpoints_->save(with_best(), is_best()); });
      return true;
    });
  }

  void tell_end() {
    if (best() >= 0) {
      char text[64];
      std::snprintf(text, sizeof text, "best held-out accuracy: %.2f%%", 100 * best());
      log_.line(text);
    }
    if (!path_.empty()) log_.line("checkpoint: " + path_);
    if (rank_.stop_requested())
      log_.note("notice",
                "stopped by a signal after step " + std::to_string(rank_.steps_done()) + "; --resume latest goes on",
                position_.epoch);
    if (checkpoints_->failure()) throw Error(*checkpoints_->failure());
  }

  void hold_out(std::int64_t epoch, bool may_be_best) {
    auto report = validate(job_, rank_, *model_, *data_.held_out);
    tell_notices(*data_.held_out, epoch);
    report.epoch = epoch;
    report.step = rank_.system().compute().steps_done();
    if (may_be_best && (report.accuracy > best() || is_best())) {
      report.best = true;
      set_best(report.accuracy);
      rank_.system().compute().notes()["best_step"] = std::to_string(report.step);
    }
    log_.send(report);
  }

  // Kept in the notes, which newcomers get with the model.
  double best() const {
    const auto& notes = rank_.system().compute().notes();
    const auto found = notes.find("best");
    return found == notes.end() ? -1 : std::stod(found->second);
  }
  void set_best(double accuracy) {
    char text[32];
    std::snprintf(text, sizeof text, "%.17g", accuracy);
    rank_.system().compute().notes()["best"] = text;
  }
  bool is_best() const {
    auto& compute = rank_.system().compute();
    const auto found = compute.notes().find("best_step");
    return found != compute.notes().end() && found->second == std::to_string(compute.steps_done());
  }
  RunCheckpoints::Position with_best() const { return {position_.epoch, position_.step_in_epoch, best()}; }

  const Job& job_;
  Rank& rank_;
  const Config& config_;
  RunLog log_;
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<Optimizer> optimizer_;
  Datasets data_;
  std::optional<RunCheckpoints> checkpoints_;
  std::optional<BatchStream> stream_;
  RunCheckpoints::Position position_;
  std::vector<std::shared_ptr<const Batch>> of_step_;  // micro-batches, where the strategy runs them all at once
  StepWindow window_, bar_window_;
  double validation_ms_ = 0, checkpoint_ms_ = 0;  // of the step under way
  std::chrono::steady_clock::time_point last_bar_ = std::chrono::steady_clock::now(), begun_;
  std::int64_t begun_at_step_ = 0;
  std::string path_;
};

}  // namespace

void train(const Job& job, Rank& rank) {
  rank.claim_checkpoints();
  TrainingLoop loop(job, rank);
  try {
    loop.run();
  } catch (const Error& error) {
    loop.fail(error.what());
    if (error.code() == ErrorCode::parked) loop.save_before_parking(error.report().rank);
    throw;
  } catch (const std::exception& error) {  // the user's own
    loop.fail(error.what());
    throw;
  }
}

int run(const Job& job, int argc, char** argv) {
  return troupe::main(
      argc, argv, [&](Rank& rank) { train(job, rank); }, job.declare);
}

}  // namespace troupe
