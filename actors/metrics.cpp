#include "actors/metrics.hpp"

#include <algorithm>

namespace troupe {

void StepWindow::add(const StepReport& report, double data_wait_ms) {
  if (steps == 0) first_step = report.step;
  ++steps;
  if (!report.committed) ++skipped;
  if (report.committed) {
    loss_sum += report.loss * report.samples;
    samples += report.samples;
    correct += report.correct;
    max_loss = std::max(max_loss, report.max_loss);
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

MetricRecord record_of(const MetricsReport& report) {
  const auto& w = report.window;
  MetricRecord record;
  record.step = report.step;
  record.steps_from = w.steps > 0 ? w.first_step : report.step;
  record.epoch = report.epoch;
  record.wall_time = report.wall_time;
  record.stragglers = w.stragglers;
  record.add("loss_metrics/global_avg_loss", w.loss());
  record.add("loss_metrics/global_max_loss", w.samples > 0 ? w.max_loss : std::numeric_limits<double>::quiet_NaN());
  record.add("grad_norm", w.last_norm);
  record.add("memory/max_resident(GiB)", report.max_resident_gib);
  record.add("throughput(tps)", w.samples_per_second() * static_cast<double>(report.tokens_per_sample));
  record.add("throughput(samples/s)", w.samples_per_second());
  record.add("throughput(steps/s)", w.steps_per_second());
  record.add("time_metrics/end_to_end(s)", w.mean_step_ms() / 1000);
  record.add("time_metrics/data_loading(%)", 100 * w.data_share());
  record.add("time_metrics/exposed_communication(%)", 100 * w.exposed_share());
  record.add("time_metrics/reduce(ms)", w.steps > 0 ? w.reduce_ms / static_cast<double>(w.steps) : 0);
  record.add("lr", w.last_lr);
  record.add("accuracy", w.accuracy());
  record.add("loss_scale", w.last_loss_scale);
  record.add("skipped_steps", static_cast<double>(w.skipped));
  record.add("slow_ranks", static_cast<double>(w.stragglers.size()));
  return record;
}

MetricRecord record_of(const ValidationReport& report) {
  MetricRecord record;
  record.kind = MetricRecord::Kind::validation;
  record.step = record.steps_from = report.step;
  record.epoch = report.epoch;
  record.wall_time = report.wall_time;
  record.best = report.best;
  record.add("validation/loss", report.loss);
  record.add("validation/accuracy", report.accuracy);
  record.add("validation/samples", report.samples);
  return record;
}

MetricsActor::behavior_type metrics(MetricsActor::stateful_pointer<MetricsState> self, MetricsOptions options) {
  self->state.self = self;
  self->state.told.assign(options.sinks.size(), false);
  self->state.options = std::move(options);
  return self->state.make_behavior();
}

template <class Work>
void MetricsState::attempt(std::size_t sink, Work&& work) {
  std::string problem;
  try {
    work(*options.sinks[sink]);
  } catch (const Error& error) {
    problem = error.what();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (problem.empty() || told[sink]) return;
  told[sink] = true;
  if (options.warn) options.warn(std::string(options.sinks[sink]->name()) + ": " + problem + "; training goes on");
}

void MetricsState::begin(const MetricRecord& first) {
  begun = true;
  if (options.earlier) {
    const auto earlier = options.earlier();
    for (std::size_t i = 0; i < options.sinks.size(); ++i) {
      attempt(i, [&](MetricSink& sink) { sink.take_over(earlier.written); });
    }
    for (const auto& record : earlier.lost) write(record);
  }
  MetricRecord start;
  start.kind = MetricRecord::Kind::start;
  start.step = start.steps_from = first.steps_from;
  start.epoch = first.epoch;
  start.wall_time = first.wall_time;
  write(start);
}

void MetricsState::write(const MetricRecord& record) {
  if (!begun) begin(record);
  for (std::size_t i = 0; i < options.sinks.size(); ++i) {
    attempt(i, [&](MetricSink& sink) { sink.write(record); });
  }
}

void MetricsState::finish(const FinishMetrics& message) {
  const auto deadline = std::chrono::steady_clock::now() + message.patience;
  for (std::size_t i = 0; i < options.sinks.size(); ++i) {
    attempt(i, [&](MetricSink& sink) { sink.finish(deadline, message.failed); });
  }
}

MetricsActor::behavior_type MetricsState::make_behavior() {
  return {
      [this](const MetricsReport& report) {
        if (options.on_report) options.on_report(report);
        if (report.log) write(record_of(report));
      },
      [this](const ValidationReport& report) {
        if (options.on_validation) options.on_validation(report);
        write(record_of(report));
      },
      [this](const ConsoleLine& line) {
        if (options.on_line) options.on_line(line.text);
      },
      [this](const FinishMetrics& message) {
        finish(message);
        return true;
      },
  };
}

}  // namespace troupe
