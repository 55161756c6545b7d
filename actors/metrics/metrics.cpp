#include "actors/metrics/metrics.hpp"

#include <algorithm>

namespace troupe {

namespace {

// How ranks compare, and how busy the mean one is.
void add_balance(MetricRecord& record, const StepWindow& w) {
  double sum = 0, busy = 0, longest = 0;
  for (const auto& rank : record.ranks) {
    sum += static_cast<double>(rank.total_ms());
    busy += static_cast<double>(rank.forward_ms + rank.backward_ms);
    longest = std::max(longest, static_cast<double>(rank.total_ms()));
  }
  const auto n = static_cast<double>(std::max<std::size_t>(1, record.ranks.size()));
  const auto& times = w.times;
  const double step = w.mean_step_ms(), others = w.mean(times.optimizer_ms + times.validation_ms + times.checkpoint_ms);
  const bool known = !record.ranks.empty() && step > 0;
  record.add("time_metrics/idle(%)", known ? 100 * std::clamp(1 - (busy / n + others) / step, 0.0, 1.0)
                                           : std::numeric_limits<double>::quiet_NaN());
  record.add("time_metrics/imbalance(%)",
             known && sum > 0 ? 100 * (longest / (sum / n) - 1) : std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

MetricRecord record_of(const MetricsReport& report) {
  const auto& w = report.window;
  const auto& times = w.times;
  MetricRecord record;
  record.step = report.step;
  record.steps_from = w.steps > 0 ? w.first_step : report.step;
  record.epoch = report.epoch;
  record.wall_time = report.wall_time;
  record.stragglers = w.stragglers;
  record.ranks = w.sections.means();
  record.add("loss_metrics/global_avg_loss", w.loss());
  record.add("loss_metrics/global_max_loss", w.samples > 0 ? w.max_loss : std::numeric_limits<double>::quiet_NaN());
  record.add("grad_norm", w.last_norm);
  record.add("memory/max_resident(GiB)", report.max_resident_gib);
  record.add("memory/max_active(GiB)", report.max_active_gib);
  record.add("memory/max_reserved(GiB)", report.max_reserved_gib);
  record.add("throughput(tps)", w.samples_per_second() * static_cast<double>(report.tokens_per_sample));
  record.add("throughput(samples/s)", w.samples_per_second());
  record.add("throughput(steps/s)", w.steps_per_second());
  record.add("time_metrics/end_to_end(s)", w.mean_step_ms() / 1000);
  record.add("time_metrics/data_loading(%)", 100 * w.data_share());
  record.add("time_metrics/exposed_communication(%)", 100 * w.exposed_share());
  record.add("time_metrics/reduce(ms)", w.mean(times.reduce_ms));
  const auto mine = record.ranks.empty() ? SectionTimes{} : record.ranks.front();
  const auto own_share = [&](float ms) {
    return w.mean_step_ms() > 0 ? 100 * static_cast<double>(ms) / w.mean_step_ms() : 0;
  };
  record.add("time_metrics/forward(%)", own_share(mine.forward_ms));
  record.add("time_metrics/backward(%)", own_share(mine.backward_ms));
  record.add("time_metrics/collectives(%)", 100 * times.share(times.inside_ms));
  record.add("time_metrics/optimizer(%)", 100 * times.share(times.optimizer_ms));
  record.add("time_metrics/validation(%)", 100 * times.share(times.validation_ms));
  record.add("time_metrics/checkpoint(%)", 100 * times.share(times.checkpoint_ms));
  record.add("time_metrics/overlap(%)", 100 * times.overlap());
  add_balance(record, w);
  const auto buckets = static_cast<double>(w.buckets.number);
  record.add("buckets", w.mean(buckets));
  record.add("bucket_size(MiB)", buckets > 0 ? static_cast<double>(w.buckets.bytes) / buckets / (1 << 20) : 0);
  record.add("queue/loader(batches)", times.share(times.batch_queue_ms));  // Little's law: waiting times over the time
  record.add("queue/reducer(buckets)", times.share(times.bucket_queue_ms));
  record.add("world_size", report.world_size);
  record.add("lr", w.last_lr);
  record.add("accuracy", w.accuracy());
  record.add("loss_scale", w.last_loss_scale);
  record.add("skipped_steps", static_cast<double>(w.skipped));
  record.add("slow_ranks", static_cast<double>(w.stragglers.size()));
  const auto none = std::numeric_limits<double>::quiet_NaN();
  record.add("total_steps", report.total_steps > 0 ? static_cast<double>(report.total_steps) : none);
  record.add("time_left(s)", report.seconds_left >= 0 ? report.seconds_left : none);
  record.own = w.logged.results();
  for (const auto& [name, value] : report.figures) record.own.emplace_back(kStrategyPrefix + name, value);
  return record;
}

MetricRecord record_of(const ValidationReport& report) {
  MetricRecord record;
  record.kind = MetricRecord::Kind::validation;
  record.step = record.steps_from = report.step;
  record.epoch = report.epoch;
  record.wall_time = report.wall_time;
  record.best = report.best;
  record.add("validation_metrics/loss", report.loss);
  record.add("validation_metrics/accuracy", report.accuracy);
  record.add("validation_metrics/samples", report.samples);
  for (const auto& [name, value] : report.logged.results()) record.own.emplace_back(kValidationPrefix + name, value);
  return record;
}

MetricsActor::behavior_type metrics(MetricsActor::stateful_pointer<MetricsState> self, MetricsOptions options) {
  self->state.self = self;
  self->state.told.assign(options.sinks.size(), false);
  self->state.options = std::move(options);
  join_trace(self->state.options.trace, "metrics");
  return self->state.make_behavior();
}

template <class Work>
void MetricsState::attempt(std::size_t sink, Work&& work) {
  std::string problem;
  try {
    work(*options.sinks[sink]);
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
    for (const auto& record : earlier.written) note_validation(record);
    for (const auto& record : earlier.lost) write(record);
  }
  MetricRecord start;
  start.kind = MetricRecord::Kind::start;
  start.step = start.steps_from = first.steps_from;
  start.epoch = first.epoch;
  start.wall_time = first.wall_time;
  start.generation = options.generation;
  write(start);
}

void MetricsState::note_validation(const MetricRecord& record) {
  if (record.kind == MetricRecord::Kind::train) validated.reset();
  if (record.kind == MetricRecord::Kind::validation) validated = record.step;
}

void MetricsState::write(const MetricRecord& record) {
  if (!begun) begin(record);
  note_validation(record);
  last.step = record.step;
  last.epoch = record.epoch;
  for (std::size_t i = 0; i < options.sinks.size(); ++i) {
    attempt(i, [&](MetricSink& sink) { sink.write(record); });
  }
  if (options.judge) judge(record);
}

void MetricsState::judge(const MetricRecord& record) {
  for (const auto& line : options.judge(record)) {
    if (options.on_warning) options.on_warning(line);
    MetricRecord warning;
    warning.kind = MetricRecord::Kind::event;
    warning.step = warning.steps_from = record.step;
    warning.epoch = record.epoch;
    warning.wall_time = record.wall_time;
    warning.event = "warning";
    warning.text = line;
    write(warning);
  }
}

void MetricsState::finish(const FinishMetrics& message) {
  const auto deadline = std::chrono::steady_clock::now() + message.patience;
  if (begun) {  // a run that came to nothing voids nothing that stands in its folder
    last.kind = MetricRecord::Kind::end;
    last.text = message.error.empty() && message.failed ? "an exception" : message.error;
    last.signal = message.signal;
    last.wall_time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    write(last);
  }
  for (std::size_t i = 0; i < options.sinks.size(); ++i) {
    attempt(i, [&](MetricSink& sink) { sink.finish(deadline, message.failed); });
  }
}

MetricsActor::behavior_type MetricsState::make_behavior() {
  return {
      [this](const MetricsReport& report) {
        const TraceSpan span("MetricsReport", TraceEvent::Kind::span);
        trace_message("MetricsReport", "compute", report.sent_ns);
        if (options.on_report) options.on_report(report);
        if (report.log) write(record_of(report));
      },
      [this](const ValidationReport& report) {
        const auto record = record_of(report);
        if (!begun) begin(record);
        if (validated == record.step) return;  // once more, since a rank died behind it
        if (options.on_validation) options.on_validation(report);
        write(record);
      },
      [this](const ConsoleLine& line) {
        if (options.on_line) options.on_line(line.text);
      },
      [this](const MetricRecord& record) { write(record); },
      [this](const FinishMetrics& message) {
        finish(message);
        return true;
      },
  };
}

}  // namespace troupe
