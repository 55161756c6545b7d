#include "launch/loop/loop_records.hpp"

#include <algorithm>
#include <limits>

#include "actors/step/logged_values.hpp"
#include "launch/loop/batch_source.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/process/rank_lines.hpp"
#include "launch/run/run_lock.hpp"
#include "tensor_io/base/steady_time.hpp"

namespace troupe {

void LoopRecords::show() {
  keeps_ = shows_ = true;
  open();
}

void LoopRecords::open() {
  if (!keeps_ || log_) return;
  log_ = std::make_unique<RunLog>(rank_, shows_ ? RunLog::Voice::console : RunLog::Voice::silent);
  state_ = {};
}

void LoopRecords::begin() {
  open();
  if (!log_ || state_.begun) return;
  const auto last = place_of_last_step();
  state_.epoch = last.epoch;
  state_.began = state_.last_bar = std::chrono::steady_clock::now();
  state_.began_at_step = rank_.steps_done();
  if (rank_.is_main() && system_of(rank_).compute().membership().generation > 1) keep_lost_step(last);
  state_.begun = true;
  for (const auto& [event, text] : std::exchange(state_.early, {})) note(event, text);
  log_->note_membership(state_.epoch);
  point_to_run();
}

// By the first rank of each host: not all need have the same files. Not before the program has read what it begins
// with, which may be runs/latest.
void LoopRecords::point_to_run() const {
  const auto& membership = system_of(rank_).compute().membership();
  if (membership.generation > 1 || !system_of(rank_).options().begins) return;  // another run may have begun since
  const auto& members = membership.members;
  const auto& mine = members[static_cast<std::size_t>(rank_.rank())];
  const auto first = std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.host == mine.host; });
  if (rank_.config().validate_only || first->process.slot != mine.process.slot) return;
  point_latest_to(rank_.config().run_dir, mine.process.slot);
}

LoopRecords::Place LoopRecords::place_of_last_step() const {
  const auto* source = position_.source();
  if (source == nullptr) return {};
  const auto& cursor = source->cursor();
  const bool at_start = cursor.step == 0 && cursor.epoch > 0;
  return {cursor.epoch - (at_start ? 1 : 0), at_start ? rank_.steps_per_epoch() : cursor.step, &source->dataset()};
}

// The step that the others ended by the votes of a rank 0 that died before it could write it down. The optimizer is
// known by now, and so is that step's rate.
void LoopRecords::keep_lost_step(const Place& place) {
  auto last = system_of(rank_).compute().last_step();
  const auto done = rank_.steps_done();
  if (!last || last->step + 1 != done) return;
  if (done % rank_.config().log_interval == 0) {
    last->lr = optimizer_ != nullptr ? optimizer_->first_rate(rank_.rate_for(*optimizer_, done - 1))
                                     : std::numeric_limits<double>::quiet_NaN();
    StepWindow window;
    window.add(*last);
    log_->keep(record_of(report_of(window, place, done)));
  }
  log_->note_if_skipped(*last, place.epoch);  // the log begins with what is kept by now
}

LoopRecords::Place LoopRecords::place_of_step() const {
  const auto* source = position_.source();
  if (source == nullptr) return {};
  return {source->cursor().epoch, source->cursor().step + 1, &source->dataset()};
}

void LoopRecords::note(const std::string& event, const std::string& text) {
  if (!log_) return;
  if (!state_.begun && system_of(rank_).compute().membership().generation > 1) {
    state_.early.emplace_back(event, text);
    return;
  }
  log_->note(event, text, state_.epoch);
}

void LoopRecords::report(const std::string& event, const std::string& text) {
  note(event, text);
  if (are_shown()) return;
  print_line(text);
}

void LoopRecords::line(const std::string& text) {
  if (log_) log_->line(text);
}

void LoopRecords::log(const std::string& text) {
  if (are_shown()) return line(text);
  if (rank_.is_main()) print_error_line(text);
}

void LoopRecords::add(const StepReport& report, const Place& place) {
  if (!log_) return;
  state_.epoch = place.epoch;
  for (const auto& notice : report.notices) note("notice", notice);
  if (place.data != nullptr) tell_notices(*place.data, place.epoch);
  log_->note_membership(place.epoch);
  if (report.repeat) return line("step " + std::to_string(report.step) + " is run again: " + report.reason);
  state_.window.add(report);
  state_.window.times.validation_ms += std::exchange(state_.validation_ms, 0);
  state_.window.times.checkpoint_ms += std::exchange(state_.checkpoint_ms, 0);
  state_.bar_window.add(report);
  log_->note_if_skipped(report, place.epoch);
  send_metrics(place);
}

void LoopRecords::add(const ValidationReport& report, const Dataset& held_out) {
  if (!log_) return;
  tell_notices(held_out, report.epoch);
  state_.validation_ms += 1000 * report.seconds;
  log_->send(report);
}

// Ranks read different samples: rank 0 names them in the records and on Troupe's console, all others in their
// logs.
void LoopRecords::tell_notices(const Dataset& data, std::int64_t epoch) {
  for (const auto& notice : data.take_notices()) {
    log_->note("bad sample", notice, epoch);
    if (!rank_.is_main() || log_->is_silent()) print_error_line("rank " + std::to_string(rank_.rank()) + ": " + notice);
  }
}

MetricsReport LoopRecords::report_of(const StepWindow& window, const Place& place, std::int64_t done) const {
  MetricsReport metrics{window,
                        place.epoch,
                        rank_.config().epochs,
                        done,
                        place.step_in_epoch,
                        rank_.steps_per_epoch(),
                        rank_.total_steps(),
                        true};
  metrics.world_size = rank_.world_size();
  if (place.data != nullptr) metrics.tokens_per_sample = place.data->tokens_per_sample();
  metrics.seconds_left = seconds_left(done);
  return metrics;
}

void LoopRecords::send_metrics(const Place& place) {
  const auto done = rank_.steps_done();
  const auto now = std::chrono::steady_clock::now();
  if (done % rank_.config().log_interval == 0) {
    auto metrics = report_of(std::exchange(state_.window, {}), place, done);
    metrics.figures = strategy_figures(done);
    log_->send(std::move(metrics));
    state_.bar_window = {};
  } else if (log_->has_bar() && now - state_.last_bar > std::chrono::milliseconds(100)) {
    state_.last_bar = now;
    auto metrics = report_of(state_.bar_window, place, done);
    metrics.log = false;
    log_->send(metrics);
  }
}

OwnFigures::Figures LoopRecords::strategy_figures(std::int64_t done) const {
  const auto* own = system_of(rank_).compute().strategy().capability<OwnFigures>();
  if (own == nullptr) return {};
  auto figures = own->own_figures(done);
  for (const auto& [name, value] : figures) check_metric_name(name);
  return figures;
}

// At the pace since the loop began, validations and saves included.
double LoopRecords::seconds_left(std::int64_t done) const {
  const auto elapsed = seconds_since(state_.began);
  const auto steps = done - state_.began_at_step;
  return steps > 0 && rank_.total_steps() > 0
             ? elapsed / static_cast<double>(steps) * static_cast<double>(rank_.total_steps() - done)
             : -1;
}

void LoopRecords::give_up() {
  if (log_) log_->give_up();
  end({});
}

void LoopRecords::end(const std::string& error) {
  optimizer_ = nullptr;
  if (log_) log_->fail(error);
  log_.reset();
  keeps_ = false;
}

}  // namespace troupe
