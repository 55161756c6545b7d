#include "actors/metrics/metric.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

constexpr int kSchema = 1;

constexpr std::array kMetrics{
    MetricName{"loss_metrics/global_avg_loss", "troupe_loss", "Mean loss over the samples of the interval, all ranks."},
    MetricName{"loss_metrics/global_max_loss", "troupe_loss_max",
               "Largest mean loss that a rank had in a step of the interval."},
    MetricName{"grad_norm", "troupe_gradient_norm",
               "Norm of the whole gradient at the last step; 0 if nothing asked for it."},
    MetricName{"memory/max_resident(GiB)", "troupe_resident_memory_peak_gib",
               "Most memory that rank 0's process ever held."},
    MetricName{"memory/max_active(GiB)", "troupe_device_memory_active_peak_gib",
               "Most memory that tensors on rank 0's device ever held; 0 on the CPU."},
    MetricName{"memory/max_reserved(GiB)", "troupe_device_memory_reserved_peak_gib",
               "Most memory that LibTorch ever took from rank 0's device; 0 on the CPU."},
    MetricName{"throughput(tps)", "troupe_tokens_per_second", "Tokens of all ranks; 0 if the data has none."},
    MetricName{"throughput(samples/s)", "troupe_samples_per_second", "Samples of all ranks."},
    MetricName{"throughput(steps/s)", "troupe_steps_per_second", "Optimizer steps."},
    MetricName{"time_metrics/end_to_end(s)", "troupe_step_seconds", "Mean time of a step."},
    MetricName{"time_metrics/data_loading(%)", "troupe_data_loading_percent",
               "Share of a step that rank 0 waited for data."},
    MetricName{"time_metrics/exposed_communication(%)", "troupe_exposed_communication_percent",
               "Share of a step that rank 0 waited for gradients of the others."},
    MetricName{"time_metrics/reduce(ms)", "troupe_reduce_milliseconds",
               "Time per step that rank 0's reducer spent in collectives."},
    MetricName{"time_metrics/forward(%)", "troupe_forward_percent", "Share of a step that rank 0 computed in forward."},
    MetricName{"time_metrics/backward(%)", "troupe_backward_percent",
               "Share of a step that rank 0 computed in backward."},
    MetricName{"time_metrics/collectives(%)", "troupe_collectives_percent",
               "Share of a step that rank 0 waited for other ranks within forward and backward: gathers, shared "
               "layers, stages, SyncBatchNorm."},
    MetricName{"time_metrics/optimizer(%)", "troupe_optimizer_percent", "Share of a step in rank 0's optimizer."},
    MetricName{"time_metrics/validation(%)", "troupe_validation_percent",
               "Share of a step for validation before it, on rank 0."},
    MetricName{"time_metrics/checkpoint(%)", "troupe_checkpoint_percent",
               "Share of a step that a save before it held rank 0 up."},
    MetricName{"time_metrics/overlap(%)", "troupe_overlap_percent",
               "Share of the time in the reducer's collectives that was hidden behind compute (a lower bound); 100 if "
               "there were none."},
    MetricName{"time_metrics/idle(%)", "troupe_idle_percent",
               "Share of a step outside of forward, backward, optimizer, validation and saving; mean of the ranks."},
    MetricName{"time_metrics/imbalance(%)", "troupe_imbalance_percent",
               "How much longer the slowest rank's own work takes in a step than the mean of all ranks."},
    MetricName{"buckets", "troupe_buckets", "Buckets of a step."},
    MetricName{"bucket_size(MiB)", "troupe_bucket_size_mib", "Mean size of a bucket."},
    MetricName{"queue/loader(batches)", "troupe_loader_queue_batches",
               "Loaded batches that waited for rank 0's compute, mean over time."},
    MetricName{"queue/reducer(buckets)", "troupe_reducer_queue_buckets",
               "Full buckets that waited for rank 0's reducer, mean over time."},
    MetricName{"world_size", "troupe_world_size", "Ranks that train."},
    MetricName{"lr", "troupe_learning_rate", "Learning rate of the last step."},
    MetricName{"accuracy", "troupe_accuracy",
               "Share of the interval's samples that were right; 0 if nothing counts them."},
    MetricName{"loss_scale", "troupe_loss_scale", "Loss scale of the last step."},
    MetricName{"skipped_steps", "troupe_skipped_steps", "Steps of the interval that were not applied."},
    MetricName{"slow_ranks", "troupe_slow_ranks", "Ranks that keep the others waiting."},
    MetricName{"total_steps", "troupe_total_steps", "Steps that the run will have; null if that is not known."},
    MetricName{"time_left(s)", "troupe_time_left_seconds",
               "Time left at the run's pace so far, validation and saving included; null if that is not known."},
    MetricName{"validation_metrics/loss", "troupe_validation_loss", "Mean loss over the held-out samples."},
    MetricName{"validation_metrics/accuracy", "troupe_validation_accuracy",
               "Share of the held-out samples that were right."},
    MetricName{"validation_metrics/samples", "troupe_validation_samples", "Held-out samples."},
};

// In the order of MetricRecord::Kind.
constexpr std::array kKinds{"start", "train", "validation", "event", "end"};

constexpr std::array kSections{std::pair{"data(ms)", &SectionTimes::data_ms},
                               std::pair{"forward(ms)", &SectionTimes::forward_ms},
                               std::pair{"backward(ms)", &SectionTimes::backward_ms}};

void read_ranks(const nlohmann::ordered_json& entry, MetricRecord& record) {
  for (const auto& [name, part] : kSections) {
    const auto& list = entry.at(name);
    record.ranks.resize(list.size());
    for (std::size_t r = 0; r < list.size(); ++r) record.ranks[r].*part = list[r].get<float>();
  }
}

void write_event(const MetricRecord& record, nlohmann::ordered_json& line) {
  line["event"] = record.event;
  line["text"] = record.text;
  if (record.generation == 0) return;
  line["generation"] = record.generation;
  line["stalled(ms)"] = std::round(record.stalled_ms);
  if (!record.cause.empty()) line["cause"] = record.cause;
  auto& members = line["members"] = nlohmann::ordered_json::array();
  for (const auto& place : record.members)
    members.push_back({{"rank", place.rank}, {"slot", place.slot}, {"host", place.host}, {"newcomer", place.newcomer}});
}

void read_event(const nlohmann::ordered_json& entry, MetricRecord& record) {
  record.event = entry.at("event");
  record.text = entry.value("text", std::string());
  record.generation = entry.value("generation", std::uint64_t{0});
  record.stalled_ms = entry.value("stalled(ms)", 0.0);
  record.cause = entry.value("cause", std::string());
  for (const auto& place : entry.value("members", nlohmann::ordered_json::array()))
    record.members.push_back({place.at("rank"), place.at("slot"), place.at("host"), place.at("newcomer")});
}

}  // namespace

std::span<const MetricName> metric_names() noexcept { return kMetrics; }

const MetricName* find_metric(const std::string& name) noexcept {
  const auto found =
      std::find_if(kMetrics.begin(), kMetrics.end(), [&](const MetricName& metric) { return name == metric.name; });
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

void check_own_metric(const std::string& name) {
  if (find_metric(name) == nullptr && !name.starts_with(kValidationPrefix) && !name.starts_with(kStrategyPrefix))
    return;
  throw Error(ErrorCode::usage, "log", "'" + name + "' is a metric that Troupe reports itself", "choose another name");
}

void MetricRecord::add(const char* name, double value) {
  const auto* metric = find_metric(name);
  if (metric == nullptr) throw std::logic_error(std::string("no metric is called ") + name);
  values.emplace_back(metric, value);
}

double MetricRecord::value(const char* name) const noexcept {
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const auto& entry) { return std::strcmp(entry.first->name, name) == 0; });
  return found == values.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

std::string to_json(const MetricRecord& record) {
  nlohmann::ordered_json line{{"schema", kSchema},
                              {"kind", kKinds[static_cast<std::size_t>(record.kind)]},
                              {"step", record.step},
                              {"epoch", record.epoch},
                              {"wall_time", record.wall_time}};
  for (const auto& [metric, value] : record.values) line[metric->name] = value;
  for (const auto& [name, value] : record.own) line["own"][name] = value;
  if (record.kind == MetricRecord::Kind::train) {
    line["stragglers"] = nlohmann::ordered_json::array();
    for (const auto& slow : record.stragglers) {
      line["stragglers"].push_back({{"rank", slow.rank},
                                    {"host", slow.host},
                                    {"section", slow.section},
                                    {"ratio", slow.ratio},
                                    {"own(ms)", slow.own_ms}});
    }
  }
  if (!record.ranks.empty()) {
    for (const auto& [name, part] : kSections) {
      auto& list = line["ranks"][name] = nlohmann::ordered_json::array();
      for (const auto& rank : record.ranks) list.push_back(std::round(1000.0 * static_cast<double>(rank.*part)) / 1000);
    }
  }
  if (record.kind == MetricRecord::Kind::validation) line["best"] = record.best;
  if (record.kind == MetricRecord::Kind::start && record.generation > 0) line["generation"] = record.generation;
  if (record.kind == MetricRecord::Kind::event) write_event(record, line);
  if (record.kind == MetricRecord::Kind::end) {
    line["error"] = record.text;
    line["signal"] = record.signal;
  }
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

MetricRecord record_from_json(const std::string& line) {
  MetricRecord record;
  try {
    const auto entry = nlohmann::ordered_json::parse(line);
    if (entry.value("schema", kSchema) != kSchema) return {.step = -1};
    const std::string kind = entry.at("kind");
    using enum MetricRecord::Kind;
    const auto known = std::find(kKinds.begin(), kKinds.end(), kind);
    if (known == kKinds.end()) return {.step = -1};
    record.kind = static_cast<MetricRecord::Kind>(known - kKinds.begin());
    record.epoch = entry.at("epoch");
    record.wall_time = entry.at("wall_time");
    record.best = entry.value("best", false);
    for (const auto& [name, value] : entry.items()) {
      if (const auto* metric = find_metric(name))
        record.values.emplace_back(metric,
                                   value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
    }
    const auto own = entry.value("own", nlohmann::ordered_json::object());
    for (const auto& [name, value] : own.items())
      record.own.emplace_back(name, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
    for (const auto& slow : entry.value("stragglers", nlohmann::ordered_json::array()))
      record.stragglers.push_back(
          {slow.at("rank"), slow.at("host"), slow.at("section"), slow.at("ratio"), slow.at("own(ms)"), 0});
    if (entry.contains("ranks")) read_ranks(entry["ranks"], record);
    if (record.kind == start) record.generation = entry.value("generation", std::uint64_t{0});
    if (record.kind == event) read_event(entry, record);
    if (record.kind == end) {
      record.text = entry.value("error", std::string());
      record.signal = entry.value("signal", 0);
    }
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
    } else if (record.step >= 0 &&
               (record.kind == MetricRecord::Kind::train || record.kind == MetricRecord::Kind::validation)) {
      earlier.written.push_back(std::move(record));
    }
  }
  // A step's validation comes after it.
  const auto place_of = [](const MetricRecord& record) { return std::pair(record.step, record.kind); };
  auto last = std::pair(std::int64_t{-1}, MetricRecord::Kind::train);
  for (const auto& record : earlier.written) last = std::max(last, place_of(record));
  for (std::string line; std::getline(known, line);) {
    auto record = record_from_json(line);
    if (place_of(record) <= last) continue;
    last = place_of(record);  // a donor's and our own, of one step, are two
    earlier.lost.push_back(std::move(record));
  }
  return earlier;
}

}  // namespace troupe
