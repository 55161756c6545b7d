#include "actors/metric_record.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace troupe {
namespace {

constexpr int kSchema = 1;

constexpr std::array kMetrics{
    MetricName{"loss_metrics/global_avg_loss", "troupe_loss", "Mean loss over the samples of the interval, all ranks."},
    MetricName{"loss_metrics/global_max_loss", "troupe_loss_max", "Largest mean loss that a rank had in a step of the interval."},
    MetricName{"grad_norm", "troupe_gradient_norm", "Norm of the whole gradient at the last step; 0 where nobody asked for it."},
    MetricName{"memory/max_resident(GiB)", "troupe_resident_memory_peak_gib", "Most memory that rank 0's process ever held."},
    MetricName{"throughput(tps)", "troupe_tokens_per_second", "Tokens of all ranks; 0 where the data has none."},
    MetricName{"throughput(samples/s)", "troupe_samples_per_second", "Samples of all ranks."},
    MetricName{"throughput(steps/s)", "troupe_steps_per_second", "Optimizer steps."},
    MetricName{"time_metrics/end_to_end(s)", "troupe_step_seconds", "Mean time of a step."},
    MetricName{"time_metrics/data_loading(%)", "troupe_data_loading_percent", "Share of a step that rank 0 waited for data."},
    MetricName{"time_metrics/exposed_communication(%)", "troupe_exposed_communication_percent",
               "Share of a step that rank 0 waited for gradients of the others."},
    MetricName{"time_metrics/reduce(ms)", "troupe_reduce_milliseconds", "Time of a step that rank 0's reducer was in collectives."},
    MetricName{"lr", "troupe_learning_rate", "Learning rate of the last step."},
    MetricName{"accuracy", "troupe_accuracy", "Share of the interval's samples that were right; 0 where nobody counts."},
    MetricName{"loss_scale", "troupe_loss_scale", "Loss scale of the last step."},
    MetricName{"skipped_steps", "troupe_skipped_steps", "Steps of the interval that were not applied."},
    MetricName{"slow_ranks", "troupe_slow_ranks", "Ranks that keep the others waiting."},
    MetricName{"validation/loss", "troupe_validation_loss", "Mean loss over the held-out samples."},
    MetricName{"validation/accuracy", "troupe_validation_accuracy", "Share of the held-out samples that were right."},
    MetricName{"validation/samples", "troupe_validation_samples", "Held-out samples."},
};

const char* kind_name(MetricRecord::Kind kind) {
  switch (kind) {
    case MetricRecord::Kind::start: return "start";
    case MetricRecord::Kind::train: return "train";
    case MetricRecord::Kind::validation: return "validation";
  }
  return "";
}

}  // namespace

std::span<const MetricName> metric_names() noexcept { return kMetrics; }

const MetricName* find_metric(const std::string& name) noexcept {
  const auto found = std::find_if(kMetrics.begin(), kMetrics.end(), [&](const MetricName& metric) { return name == metric.name; });
  return found == kMetrics.end() ? nullptr : &*found;
}

std::string mlflow_name(const MetricName& metric) {
  std::string name;
  for (const char c : std::string_view(metric.name)) {
    if (c == '(') name += '_';
    if (c == '%') name += "percent";
    if (c != '(' && c != ')' && c != '%') name += c;
  }
  return name;
}

void MetricRecord::add(const char* name, double value) {
  const auto* metric = find_metric(name);
  if (metric == nullptr) throw std::logic_error(std::string("no metric is called ") + name);
  values.emplace_back(metric, value);
}

std::string to_json(const MetricRecord& record) {
  nlohmann::ordered_json line{{"schema", kSchema},
                              {"kind", kind_name(record.kind)},
                              {"step", record.step},
                              {"epoch", record.epoch},
                              {"wall_time", record.wall_time}};
  for (const auto& [metric, value] : record.values) line[metric->name] = value;
  if (record.kind == MetricRecord::Kind::train) {
    line["stragglers"] = nlohmann::ordered_json::array();
    for (const auto& slow : record.stragglers) {
      line["stragglers"].push_back(
          {{"rank", slow.rank}, {"host", slow.host}, {"section", slow.section}, {"ratio", slow.ratio}, {"own(ms)", slow.own_ms}});
    }
  }
  if (record.kind == MetricRecord::Kind::validation) line["best"] = record.best;
  return line.dump();
}

MetricRecord record_from_json(const std::string& line) {
  MetricRecord record;
  try {
    const auto entry = nlohmann::ordered_json::parse(line);
    const std::string kind = entry.at("kind");
    record.kind = kind == "start"   ? MetricRecord::Kind::start
                  : kind == "train" ? MetricRecord::Kind::train
                                    : MetricRecord::Kind::validation;
    record.epoch = entry.at("epoch");
    record.wall_time = entry.at("wall_time");
    record.best = entry.value("best", false);
    for (const auto& [name, value] : entry.items()) {
      if (const auto* metric = find_metric(name))
        record.values.emplace_back(metric, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
    }
    for (const auto& slow : entry.value("stragglers", nlohmann::ordered_json::array()))
      record.stragglers.push_back({slow.at("rank"), slow.at("host"), slow.at("section"), slow.at("ratio"), slow.at("own(ms)"), 0});
    record.step = record.steps_from = entry.at("step");
  } catch (const nlohmann::json::exception&) {  // somebody else's line, or an older one
    return {.step = -1};
  }
  return record;
}

EarlierRecords earlier_records(const std::string& known_lines, const std::string& tail) {
  EarlierRecords earlier;
  std::istringstream written(tail), known(known_lines);
  for (std::string line; std::getline(written, line);) {
    auto record = record_from_json(line);
    if (record.kind == MetricRecord::Kind::start) {
      std::erase_if(earlier.written, [&](const MetricRecord& old) { return old.step > record.step; });
    } else if (record.step >= 0) {
      earlier.written.push_back(std::move(record));
    }
  }
  std::int64_t last = -1;
  for (const auto& record : earlier.written) {
    if (record.kind == MetricRecord::Kind::train) last = std::max(last, record.step);
  }
  for (std::string line; std::getline(known, line);) {
    auto record = record_from_json(line);
    if (record.step <= last) continue;
    last = record.step;  // a donor's and our own, of one step, are two
    earlier.lost.push_back(std::move(record));
  }
  return earlier;
}

}  // namespace troupe
