#include <algorithm>
#include <numeric>

#include "launch/debug/step_judgements.hpp"
#include "launch/process/formatted.hpp"

namespace troupe {
namespace {

using Verdict = DebugVerdict;
using Findings = DebugFindings;

constexpr double kShortStep = 5;  // ms

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// The first steps make what later ones use again.
double step_ms(const DebugRun& run) {
  const auto* record = first_record(run);
  if (record == nullptr || record->pace.step_ms.empty()) return 0;
  const auto& times = record->pace.step_ms;
  return median({times.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(3, times.size() - 1)), times.end()});
}

std::string imbalance(const InspectionRecord& record) {
  std::vector<double> by_rank;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(record.world_size); ++rank) {
    std::vector<double> times;
    for (const auto& step : record.pace.own_ms) {
      if (rank < step.size()) times.push_back(step[rank]);
    }
    by_rank.push_back(median(times));
  }
  const auto slowest = std::max_element(by_rank.begin(), by_rank.end());
  const double average = std::accumulate(by_rank.begin(), by_rank.end(), 0.0) / static_cast<double>(by_rank.size());
  if (average <= 0) return {};
  return formatted("; rank %d is the slowest, with %.2f times the ranks' mean (usual: below 1.1)",
                   static_cast<int>(slowest - by_rank.begin()), *slowest / average);
}

}  // namespace

void judge_efficiency(const DebugRuns& runs, Findings& findings) {
  if (runs.alone.failed() || runs.together.failed()) return;
  const double alone = step_ms(runs.alone), together = step_ms(runs.together);
  if (alone <= 0 || together <= 0) return;
  const auto& record = runs.together.records[0];
  std::string found =
      formatted("compute waits for communication in %.0f %% of a step (usual: below 10)", 100 * record.pace.exposed) +
      imbalance(record) + formatted("; a step takes %.3g ms with 1 rank", alone);
  const auto add = [&](const DebugRun& run) {
    const double ms = step_ms(run);
    if (ms <= 0) return;
    found += formatted(", %.3g with %d", ms, run.ranks);
    const int most = std::min(run.ranks, runs.cores);
    found += run.ranks > runs.cores && record.device == "cpu"
                 ? formatted(" (they share %d cores)", runs.cores)
                 : formatted(" (%.0f %% of %d times as fast; usual: 90 and more)", 100 * alone / ms / most, run.ranks);
  };
  add(runs.together);
  for (const auto& run : runs.wider) {
    if (run.failed())
      found += formatted("; %d ranks could not be tried", run.ranks) + (run.error.empty() ? "" : ": " + run.error);
    else
      add(run);
  }
  if (alone < kShortStep) found += "; steps as short as these gain nothing from more ranks: give each more samples";
  findings.push_back({DebugStep::efficiency, Verdict::ok, found, {}, {}, "benchmarks.md"});
}

}  // namespace troupe
