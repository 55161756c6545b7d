#include "launch/loop/run_records.hpp"
#include "launch/loop/rank_system.hpp"
#include "tensor_io/base/steady_time.hpp"

#include <cstdio>

namespace troupe {

void RunRecords::begin(const Place& last_step, double lr) {
  epoch_ = last_step.epoch;
  began_ = last_bar_ = std::chrono::steady_clock::now();
  began_at_step_ = rank_.steps_done();
  if (rank_.is_main() && system_of(rank_).compute().membership().generation > 1) keep_lost_step(last_step, lr);
  begun_ = true;
  for (const auto& [event, text] : std::exchange(early_, {})) note(event, text);
  log_.note_membership(epoch_);
}

// The step that the others ended by the votes of a rank 0 that died before it could.
void RunRecords::keep_lost_step(const Place& place, double lr) {
  auto last = system_of(rank_).compute().last_step();
  const auto done = rank_.steps_done();
  if (!last || last->step + 1 != done) return;
  if (done % rank_.config().log_interval == 0) {
    last->lr = lr;
    StepWindow window;
    window.add(*last);
    log_.keep(report_of(window, place, done));
  }
  log_.note_if_skipped(*last, place.epoch);  // the log begins with what is kept by now
}

void RunRecords::note(const std::string& event, const std::string& text) {
  if (!begun_ && system_of(rank_).compute().membership().generation > 1) {
    early_.emplace_back(event, text);
    return;
  }
  log_.note(event, text, epoch_);
}

void RunRecords::add(const StepReport& report, const Place& place) {
  epoch_ = place.epoch;
  for (const auto& notice : report.notices) note("notice", notice);
  if (place.data != nullptr) tell_notices(*place.data, epoch_);
  log_.note_membership(epoch_);
  if (report.repeat) {
    log_.line("step " + std::to_string(report.step) + " is run again: " + report.reason);
    return;
  }
  window_.add(report);
  window_.validation_ms += std::exchange(validation_ms_, 0);
  window_.checkpoint_ms += std::exchange(checkpoint_ms_, 0);
  bar_window_.add(report);
  log_.note_if_skipped(report, epoch_);
  show(place);
}

void RunRecords::add(const ValidationReport& report, const Dataset& held_out) {
  tell_notices(held_out, report.epoch);
  validation_ms_ += 1000 * report.seconds;
  log_.send(report);
}

// Ranks read different samples: rank 0 names them in the records and on Troupe's console, all others in their
// logs.
void RunRecords::tell_notices(const Dataset& data, std::int64_t epoch) {
  for (const auto& notice : data.take_notices()) {
    log_.note("bad sample", notice, epoch);
    if (!rank_.is_main() || log_.is_silent()) std::fprintf(stderr, "rank %d: %s\n", rank_.rank(), notice.c_str());
  }
}

MetricsReport RunRecords::report_of(const StepWindow& window, const Place& place, std::int64_t done) const {
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

void RunRecords::show(const Place& place) {
  const auto done = rank_.steps_done();
  if (done % rank_.config().log_interval == 0) {
    log_.send(report_of(std::exchange(window_, {}), place, done));
    bar_window_ = {};
  } else if (log_.has_bar() && std::chrono::steady_clock::now() - last_bar_ > std::chrono::milliseconds(100)) {
    last_bar_ = std::chrono::steady_clock::now();
    auto metrics = report_of(bar_window_, place, done);
    metrics.log = false;
    log_.send(metrics);
  }
}

// At the pace since the loop began, validations and saves included.
double RunRecords::seconds_left(std::int64_t done) const {
  const auto elapsed = seconds_since(began_);
  const auto steps = done - began_at_step_;
  return steps > 0 && rank_.total_steps() > 0
             ? elapsed / static_cast<double>(steps) * static_cast<double>(rank_.total_steps() - done)
             : -1;
}

}  // namespace troupe
