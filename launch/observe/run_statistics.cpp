#include "launch/observe/run_statistics.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace troupe {
namespace {

using Kind = MetricRecord::Kind;

double or_zero(double value) { return std::isfinite(value) ? value : 0; }

int world_size_of(const MetricRecord& record) {
  const double size = or_zero(record.value("world_size"));
  return size >= 1 && size < 1e9 ? static_cast<int>(size) : 0;
}

// A train record and how many steps it is about.
struct Interval {
  const MetricRecord* record = nullptr;
  double steps = 1;
  bool settled = true;  // neither the first of a life nor the first after a change of membership
};

std::vector<Interval> intervals_of(const std::vector<MetricRecord>& records) {
  std::vector<Interval> intervals;
  bool settled = false;
  std::int64_t before = -1;
  for (const auto& record : records) {
    if (record.kind == Kind::start) before = record.step;
    if (record.kind == Kind::start || (record.kind == Kind::event && record.generation > 0)) settled = false;
    if (record.kind != Kind::train) continue;
    const auto steps = before >= 0 && record.step > before ? record.step - before : 1;
    intervals.push_back({&record, static_cast<double>(steps), settled});
    settled = true;
    before = record.step;
  }
  return intervals;
}

void add_ranks(RunNumbers& n, const MetricRecord& record, double weight) {
  if (record.ranks.size() != static_cast<std::size_t>(n.world_size)) return;
  n.ranks.resize(record.ranks.size());
  for (std::size_t r = 0; r < record.ranks.size(); ++r) {
    const auto w = static_cast<float>(weight);
    n.ranks[r].data_ms += w * record.ranks[r].data_ms;
    n.ranks[r].forward_ms += w * record.ranks[r].forward_ms;
    n.ranks[r].backward_ms += w * record.ranks[r].backward_ms;
  }
}

void count_events(RunNumbers& n, const std::vector<MetricRecord>& records) {
  double first = 0, last = 0, skipped = 0;
  for (const auto& record : records) {
    if (!std::isfinite(record.wall_time) || record.wall_time <= 0) continue;
    if (first == 0) first = record.wall_time;
    last = std::max(last, record.wall_time);
  }
  n.wall_s = last - first;
  double before = first;
  for (const auto& record : records) {
    const double gap = or_zero(record.wall_time - before);
    if (record.kind != Kind::start) before = record.wall_time;
    if (record.kind == Kind::train || record.kind == Kind::end) n.steps = std::max(n.steps, record.step);
    if (record.kind == Kind::train) skipped += or_zero(record.value("skipped_steps"));
    if (record.kind != Kind::event || record.generation == 0) continue;
    n.hosts.clear();
    for (const auto& place : record.members) n.hosts.push_back(place.host);
    if (record.generation == 1) continue;
    ++n.membership_changes;
    // A new rank 0 does not know: no longer than since the record before.
    n.stalled_s += record.stalled_ms > 0 ? or_zero(record.stalled_ms) / 1000 : std::max(0.0, gap);
  }
  n.skipped = n.steps > 0 ? skipped / static_cast<double>(n.steps) : 0;
}

double error_of(const std::vector<Interval>& intervals) {
  if (intervals.size() < kParts) return 0;
  std::array<double, kParts> samples{}, seconds{};
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    const auto& record = *intervals[i].record;
    const double time = intervals[i].steps * or_zero(record.value("time_metrics/end_to_end(s)"));
    samples[i * kParts / intervals.size()] += time * or_zero(record.value("throughput(samples/s)"));
    seconds[i * kParts / intervals.size()] += time;
  }
  double sum = 0, squares = 0;
  for (std::size_t p = 0; p < kParts; ++p) {
    const double mean = samples[p] / std::max(1e-9, seconds[p]);
    sum += mean;
    squares += mean * mean;
  }
  constexpr double kN = kParts;
  return std::sqrt(std::max(0.0, squares / kN - sum / kN * sum / kN) / (kN - 1));
}

// Of the means over all steps: in a short interval the slowest is often whoever was unlucky.
double imbalance_of(const std::vector<SectionTimes>& ranks) {
  double sum = 0, longest = 0;
  for (const auto& rank : ranks) {
    sum += static_cast<double>(rank.total_ms());
    longest = std::max(longest, static_cast<double>(rank.total_ms()));
  }
  return sum > 0 ? longest / (sum / static_cast<double>(ranks.size())) - 1 : 0;
}

}  // namespace

bool can_compare_speed(const RunNumbers& a, const RunNumbers& b) noexcept {
  return std::min(a.intervals, b.intervals) >= static_cast<std::int64_t>(kParts);
}

const char* end_word(const MetricRecord& end) noexcept {
  return !end.text.empty() ? "failed" : end.signal != 0 ? "stopped" : "finished";
}

RunNumbers numbers_of(const std::vector<MetricRecord>& records) {
  RunNumbers n;
  n.overlap = 0;
  count_events(n, records);
  const auto all = intervals_of(records);
  if (all.empty()) return n.overlap = 1, n;
  n.world_size = world_size_of(*all.back().record);
  std::vector<Interval> used;
  for (const auto& interval : all) {
    if (interval.settled && world_size_of(*interval.record) == n.world_size) used.push_back(interval);
  }
  if (used.empty()) used.push_back(all.back());
  n.intervals = static_cast<std::int64_t>(used.size());
  n.left_out = static_cast<std::int64_t>(all.size() - used.size());
  // By time, so that shares add up; what a step has of something goes by steps.
  double time = 0, steps = 0;
  for (const auto& interval : used) {
    steps += interval.steps;
    time += interval.steps * 1000 * or_zero(interval.record->value("time_metrics/end_to_end(s)"));
  }
  for (const auto& interval : used) {
    const auto& record = *interval.record;
    const double by_step = interval.steps / steps;
    const double by_time =
        time > 0 ? interval.steps * 1000 * or_zero(record.value("time_metrics/end_to_end(s)")) / time : by_step;
    const auto share = [&](const char* name) { return by_time * or_zero(record.value(name)) / 100; };
    n.data += share("time_metrics/data_loading(%)");
    n.forward += share("time_metrics/forward(%)");
    n.backward += share("time_metrics/backward(%)");
    n.collectives += share("time_metrics/collectives(%)");
    n.exposed += share("time_metrics/exposed_communication(%)");
    n.optimizer += share("time_metrics/optimizer(%)");
    n.validation += share("time_metrics/validation(%)");
    n.checkpoint += share("time_metrics/checkpoint(%)");
    n.idle += share("time_metrics/idle(%)");
    n.overlap += share("time_metrics/overlap(%)");
    n.samples_per_second += by_time * or_zero(record.value("throughput(samples/s)"));
    n.tokens_per_second += by_time * or_zero(record.value("throughput(tps)"));
    n.loader_queue += by_time * or_zero(record.value("queue/loader(batches)"));
    n.reducer_queue += by_time * or_zero(record.value("queue/reducer(buckets)"));
    n.reduce_ms += by_step * or_zero(record.value("time_metrics/reduce(ms)"));
    n.buckets += by_step * or_zero(record.value("buckets"));
    n.bucket_mib += by_step * or_zero(record.value("bucket_size(MiB)"));
    n.slow_intervals += record.stragglers.empty() ? 0 : 1;
    n.has_split = n.has_split || std::isfinite(record.value("time_metrics/forward(%)"));
    add_ranks(n, record, by_step);
  }
  n.samples_error = error_of(used);
  n.imbalance = imbalance_of(n.ranks);
  n.step_ms = time / steps;
  n.rest = std::max(
      0.0, 1 - n.data - n.forward - n.backward - n.collectives - n.exposed - n.optimizer - n.validation - n.checkpoint);
  return n;
}

}  // namespace troupe
