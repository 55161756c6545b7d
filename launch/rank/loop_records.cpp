#include "launch/rank/loop_records.hpp"

namespace troupe {

void LoopRecords::add(const StepReport& report, const Place& place) {
  place_ = place;
  for (const auto& notice : report.notices) log_.note("notice", notice, place.epoch);
  log_.note_membership(place.epoch);
  if (report.repeat) return;
  log_.note_if_skipped(report, place.epoch);
  window_.add(report);
  const auto& config = rank_.config();
  const auto done = rank_.steps_done();
  if (done % config.log_interval != 0) return;
  MetricsReport metrics{
      {}, place.epoch, config.epochs, done, place.step_in_epoch, rank_.steps_per_epoch(), rank_.total_steps(), true};
  metrics.window = window_;
  metrics.world_size = rank_.world_size();
  metrics.tokens_per_sample = place.tokens_per_sample;
  log_.send(metrics);
  window_ = {};
}

}  // namespace troupe
