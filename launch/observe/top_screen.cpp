#include "launch/observe/top_screen.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string_view>

#include "actors/step/logged_values.hpp"
#include "launch/observe/run_statistics.hpp"
#include "launch/observe/svg_chart.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/wrapped_text.hpp"

namespace troupe {
namespace {

using Kind = MetricRecord::Kind;

constexpr std::size_t kMostOwn = 12;

std::string share_text(double value) {
  return std::isfinite(value) ? short_number(std::round(10 * value) / 10) + "%" : "-";
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

const MetricRecord* last_of(const std::vector<MetricRecord>& records, Kind kind) {
  const auto found =
      std::find_if(records.rbegin(), records.rend(), [&](const MetricRecord& r) { return r.kind == kind; });
  return found == records.rend() ? nullptr : &*found;
}

const MetricRecord* membership_of(const std::vector<MetricRecord>& records) {
  const auto found = std::find_if(records.rbegin(), records.rend(),
                                  [](const MetricRecord& r) { return r.kind == Kind::event && r.generation > 0; });
  return found == records.rend() ? nullptr : &*found;
}

using Metric = std::function<double(const MetricRecord&)>;

std::vector<double> recent_values(const std::vector<MetricRecord>& records, const Metric& metric, std::size_t most) {
  std::vector<double> values;
  for (auto record = records.rbegin(); record != records.rend() && values.size() < most; ++record) {
    if (record->kind == Kind::train) values.push_back(metric(*record));
  }
  std::reverse(values.begin(), values.end());
  return values;
}

std::string state_of(const std::vector<MetricRecord>& records, double now) {
  if (records.empty()) return "no record yet: the first comes after log_interval steps";
  const auto& last = records.back();
  if (last.kind != Kind::end)
    return "running, last record " + duration_text(std::max(0.0, now - last.wall_time)) + " ago";
  return end_word(last) + (last.text.empty() ? "" : ": " + displayable(last.text, 200));
}

// Beside each other, as many as fit into a line.
void add_fields(std::vector<std::string>& lines, const std::vector<std::string>& fields, std::size_t columns) {
  std::string line;
  for (const auto& field : fields) {
    if (field.empty()) continue;
    if (!line.empty() && line.size() + 2 + field.size() > columns) lines.push_back(std::exchange(line, "  "));
    line += (line.empty() || line == "  " ? "" : "  ") + field;
  }
  std::istringstream rest(wrapped({}, 0, line, columns));
  while (std::getline(rest, line)) lines.push_back(line);
}

// 0 everywhere if the program counts no samples that are right.
bool counts_accuracy(const std::vector<MetricRecord>& records) {
  return std::any_of(records.begin(), records.end(), [](const MetricRecord& r) { return r.value("accuracy") > 0; });
}

double own_value(const MetricRecord& record, const std::string& name) {
  const auto found =
      std::find_if(record.own.begin(), record.own.end(), [&](const auto& entry) { return entry.first == name; });
  return found == record.own.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

std::string step_text(const MetricRecord& r) {
  const double all = r.value("total_steps");
  return "step " + std::to_string(r.step) +
         (all > 0 && all < 1e15 ? " of " + std::to_string(static_cast<std::int64_t>(all)) : std::string());
}

void add_metrics(std::vector<std::string>& lines, const std::vector<MetricRecord>& records, const MetricRecord& r,
                 std::size_t columns) {
  const std::size_t width = columns > 54 ? columns - 34 : 20;
  lines.push_back(padded("metric", 24) + padded("now", 10) + "history ('_' low, '#' high)");
  const auto row = [&](const char* name, const char* unit, const Metric& metric) {
    lines.push_back(padded(name, 24) + padded(short_number(metric(r)) + unit, 10) +
                    spark_line(recent_values(records, metric, width), width));
  };
  const auto of = [](const char* name) { return [name](const MetricRecord& record) { return record.value(name); }; };
  const auto or_none = [](double value) { return std::isfinite(value) ? value : 0; };
  const auto tenth = [](double value) { return std::round(10 * value) / 10; };
  row("loss", "", of("loss_metrics/global_avg_loss"));
  if (counts_accuracy(records))
    row("accuracy", "%", [&](const MetricRecord& record) { return tenth(100 * record.value("accuracy")); });
  row("learning rate", "", of("lr"));
  row("samples/s", "", of("throughput(samples/s)"));
  row("exposed communication", "%", [&](const MetricRecord& record) {
    return tenth(record.value("time_metrics/exposed_communication(%)") +
                 or_none(record.value("time_metrics/collectives(%)")));
  });
  row("data wait", "%",
      [&](const MetricRecord& record) { return tenth(record.value("time_metrics/data_loading(%)")); });
  for (std::size_t i = 0; i < r.own.size() && i < kMostOwn; ++i) {
    const auto& name = r.own[i].first;
    const auto shown = displayable(name, LoggedValues::kLongestName);
    row((shown.size() < 24 ? shown : shown.substr(0, 20) + "..").c_str(), "",
        [&](const MetricRecord& record) { return own_value(record, name); });
  }
  if (r.own.size() > kMostOwn)
    lines.push_back("and " + std::to_string(r.own.size() - kMostOwn) + " more metrics, in metrics.jsonl");
  add_fields(lines, {"good: loss falls", "communication below 30% of a step", "data wait below 10%"}, columns);
}

void add_queues(std::vector<std::string>& lines, const MetricRecord& r) {
  const double step_ms = 1000 * r.value("time_metrics/end_to_end(s)");
  lines.push_back(padded("queue", 24) + padded("mean length", 16) + "waits, of a step");
  const auto queue = [&](const char* name, const std::string& length, const char* who, double wait) {
    lines.push_back(padded(name, 24) + padded(length, 16) + padded(who, 8) + share_text(wait));
  };
  queue("data loader -> compute", short_number(r.value("queue/loader(batches)")) + " batches", "compute",
        r.value("time_metrics/data_loading(%)"));
  queue("compute -> reducer", short_number(r.value("queue/reducer(buckets)")) + " buckets", "reducer",
        100 - 100 * r.value("time_metrics/reduce(ms)") / step_ms);
  queue("reducer -> compute", "", "compute", r.value("time_metrics/exposed_communication(%)"));
  queue("compute -> checkpointer", "", "compute", r.value("time_metrics/checkpoint(%)"));
}

void add_members(std::vector<std::string>& lines, const MetricRecord& membership, const MetricRecord* train,
                 std::size_t most) {
  lines.push_back("membership " + std::to_string(membership.generation) + ": " + displayable(membership.text, 200));
  std::size_t shown = 0, width = 6;
  for (const auto& place : membership.members) width = std::max(width, displayable(place.host, 24).size() + 2);
  lines.push_back(padded("  rank", 8) + padded("host", width) + "own work of a step: equal is good");
  for (const auto& place : membership.members) {
    if (shown++ == most) {
      lines.push_back("  and " + std::to_string(membership.members.size() - most) + " more ranks");
      break;
    }
    std::string line = padded("  " + std::to_string(place.rank), 8) + padded(displayable(place.host, 24), width);
    if (train != nullptr && train->ranks.size() == membership.members.size()) {
      const auto& own = train->ranks[static_cast<std::size_t>(place.rank) % train->ranks.size()];
      line += padded(short_number(static_cast<double>(own.total_ms())) + " ms", 12);
    }
    if (place.newcomer) line += "new ";
    if (train != nullptr) {
      for (const auto& slow : train->stragglers) {
        if (slow.rank == place.rank) line += "slow in " + displayable(slow.section, 20);
      }
    }
    lines.push_back(line);
  }
}

// Newest first, each as a whole, in at most `rows` rows.
void add_events(std::vector<std::string>& lines, const std::vector<MetricRecord>& records, std::size_t columns,
                std::size_t rows, double now) {
  lines.emplace_back("events, newest first");
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->kind != Kind::event) continue;
    std::string text = displayable(record->text, 300);
    if (!record->cause.empty()) text += "; cause: " + displayable(record->cause, 200);
    if (record->stalled_ms > 0) text += "; the job stood still for " + duration_text(record->stalled_ms / 1000);
    std::istringstream event(wrapped("  " + duration_text(std::max(0.0, now - record->wall_time)) + " ago", 18,
                                     "step " + std::to_string(record->step) + "  " + text, columns));
    for (std::string line; std::getline(event, line);) {
      if (rows-- == 0) return;
      lines.push_back(line);
    }
  }
}

}  // namespace

std::string spark_line(const std::vector<double>& values, std::size_t width) {
  constexpr std::string_view kLevels = "_.-:=+*#";
  const auto first = values.end() - static_cast<std::ptrdiff_t>(std::min(width, values.size()));
  double low = INFINITY, high = -INFINITY;
  for (auto value = first; value != values.end(); ++value) {
    if (!std::isfinite(*value)) continue;
    low = std::min(low, *value);
    high = std::max(high, *value);
  }
  std::string line;
  for (auto value = first; value != values.end(); ++value) {
    const double at = high > low ? (*value - low) / (high - low) : 0;
    line += std::isfinite(*value) && std::isfinite(at)
                ? kLevels[static_cast<std::size_t>(std::lround(at * (kLevels.size() - 1)))]
                : ' ';
  }
  return line;
}

std::string top_screen(const std::string& folder, const std::vector<MetricRecord>& records, std::size_t columns,
                       std::size_t rows, double now) {
  std::vector<std::string> lines;
  add_fields(lines, {"troupe top", displayable(folder, 100), state_of(records, now)}, columns);
  const auto* train = last_of(records, Kind::train);
  const auto* validation = last_of(records, Kind::validation);
  if (train != nullptr) {
    const auto& r = *train;
    add_fields(lines,
               {step_text(r),
                records.back().kind != Kind::end && r.value("time_left(s)") >= 0
                    ? "time left " + duration_text(r.value("time_left(s)"))
                    : std::string(),
                "epoch " + std::to_string(r.epoch + 1), "ranks " + short_number(r.value("world_size")),
                "time of a step " + duration_text(r.value("time_metrics/end_to_end(s)")),
                "idle " + share_text(r.value("time_metrics/idle(%)")),
                "overlap " + share_text(r.value("time_metrics/overlap(%)")),
                r.value("memory/max_resident(GiB)") > 0
                    ? "memory of rank 0 " + short_number(r.value("memory/max_resident(GiB)")) + " GiB"
                    : std::string(),
                r.value("memory/max_active(GiB)") > 0
                    ? "on its device " + short_number(r.value("memory/max_active(GiB)")) + " GiB"
                    : std::string(),
                validation == nullptr ? "no validation yet"
                                      : "held-out loss " + short_number(validation->value("validation_metrics/loss")),
                validation != nullptr && validation->value("validation_metrics/accuracy") > 0
                    ? "held-out accuracy " + share_text(100 * validation->value("validation_metrics/accuracy"))
                    : std::string()},
               columns);
    lines.emplace_back();
    add_metrics(lines, records, r, columns);
    lines.emplace_back();
    add_queues(lines, r);
    lines.emplace_back();
  }
  const auto left = [&] { return rows > lines.size() + 1 ? rows - lines.size() - 1 : 1; };
  if (const auto* membership = membership_of(records))
    add_members(lines, *membership, train, std::max<std::size_t>(2, left() / 2));
  const bool happened = last_of(records, Kind::event) != nullptr;
  if (happened && left() > 2) {
    lines.emplace_back();
    add_events(lines, records, columns, left() - 1, now);
  }
  std::string screen;
  for (auto& line : lines) screen += line.substr(0, columns) + "\n";
  return screen;
}

}  // namespace troupe
