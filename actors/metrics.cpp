#include "actors/metrics.hpp"

#include <nlohmann/json.hpp>

namespace troupe {

void StepWindow::add(const StepReport& report, double data_wait_ms) {
  if (steps == 0) first_step = report.step;
  ++steps;
  if (!report.committed) ++skipped;
  if (report.committed) {
    loss_sum += report.loss * report.samples;
    samples += report.samples;
    correct += report.correct;
  }
  step_ms += report.step_ms;
  exposed_ms += report.exposed_ms;
  reduce_ms += report.reduce_ms;
  data_ms += data_wait_ms;
  last_lr = report.lr;
  last_norm = report.gradient_norm;
  last_loss_scale = report.loss_scale;
  buckets += report.buckets;
  launched_before_end += report.launched_before_end;
  stragglers = report.stragglers;
}

std::string to_json(const MetricsReport& report) {
  const auto& w = report.window;
  nlohmann::json stragglers = nlohmann::json::array();
  for (const auto& slow : w.stragglers) {
    stragglers.push_back(
        {{"rank", slow.rank}, {"host", slow.host}, {"section", slow.section}, {"ratio", slow.ratio}, {"own(ms)", slow.own_ms}});
  }
  return nlohmann::json{{"schema", 1},
                        {"kind", "train"},
                        {"step", report.step},
                        {"epoch", report.epoch},
                        {"loss_metrics/global_avg_loss", w.loss()},
                        {"accuracy", w.accuracy()},
                        {"grad_norm", w.last_norm},
                        {"lr", w.last_lr},
                        {"skipped_steps", w.skipped},
                        {"loss_scale", w.last_loss_scale},
                        {"throughput(samples/s)", w.samples_per_second()},
                        {"throughput(tokens/s)", w.samples_per_second() * static_cast<double>(report.tokens_per_sample)},
                        {"throughput(steps/s)", w.steps_per_second()},
                        {"time_metrics/end_to_end(s)", w.mean_step_ms() / 1000},
                        {"time_metrics/data_loading(%)", 100 * w.data_share()},
                        {"time_metrics/exposed_communication(%)", 100 * w.exposed_share()},
                        {"time_metrics/reduce(ms)", w.steps > 0 ? w.reduce_ms / static_cast<double>(w.steps) : 0},
                        {"stragglers", stragglers}}
      .dump();
}

std::string to_json(const ValidationReport& report) {
  return nlohmann::json{{"schema", 1},
                        {"kind", "validation"},
                        {"step", report.step},
                        {"epoch", report.epoch},
                        {"validation/loss", report.loss},
                        {"validation/accuracy", report.accuracy},
                        {"validation/samples", report.samples},
                        {"best", report.best}}
      .dump();
}

MetricsActor::behavior_type metrics(MetricsActor::stateful_pointer<MetricsState> self, MetricsOptions options) {
  self->state.self = self;
  self->state.options = std::move(options);
  if (!self->state.options.path.empty()) self->state.file.open(self->state.options.path, std::ios::app);
  return self->state.make_behavior();
}

MetricsActor::behavior_type MetricsState::make_behavior() {
  return {
      [this](const MetricsReport& report) {
        if (report.log && file) file << to_json(report) << std::endl;
        if (options.on_report) options.on_report(report);
      },
      [this](const ValidationReport& report) {
        if (file) file << to_json(report) << std::endl;
        if (options.on_validation) options.on_validation(report);
      },
      [this](const caf::unit_t&) {  // everything before this message has been written
        file.flush();
        return true;
      },
  };
}

}  // namespace troupe
