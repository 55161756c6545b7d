#pragma once
// Records of a run of two ranks, as metrics.jsonl has them.
#include <cstdint>
#include <string>
#include <vector>

#include "actors/metrics/metric.hpp"

namespace troupe::testing {

// A log interval of one step.
inline MetricRecord interval(std::int64_t step, double seconds, double exposed, int ranks = 2) {
  MetricRecord record;
  record.step = record.steps_from = step;
  record.wall_time = 1000 + static_cast<double>(step);
  record.add("loss_metrics/global_avg_loss", 1.0 / static_cast<double>(step));
  record.add("time_metrics/end_to_end(s)", seconds);
  record.add("time_metrics/exposed_communication(%)", exposed);
  record.add("time_metrics/forward(%)", 40);
  record.add("throughput(samples/s)", 100);
  record.add("skipped_steps", 1);
  record.add("world_size", ranks);
  for (int r = 0; r < ranks; ++r) record.ranks.push_back({1, 2, 3});
  return record;
}

inline MetricRecord start_of(std::int64_t step, std::uint64_t generation) {
  MetricRecord record;
  record.kind = MetricRecord::Kind::start;
  record.step = record.steps_from = step;
  record.wall_time = 1000 + static_cast<double>(step);
  record.generation = generation;
  return record;
}

inline MetricRecord change(std::int64_t step, std::uint64_t generation, const std::string& why, double stalled_ms) {
  auto record = start_of(step, generation);
  record.kind = MetricRecord::Kind::event;
  record.event = "membership";
  record.text = why;
  record.stalled_ms = stalled_ms;
  record.members = {{0, 0, "h0", false}, {1, 1, "h1", generation > 1}};
  return record;
}

inline std::string lines_of_records(const std::vector<MetricRecord>& records) {
  std::string text;
  for (const auto& record : records) text += to_json(record) + "\n";
  return text;
}

}  // namespace troupe::testing
