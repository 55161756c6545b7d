#include "launch/report/run_comparison.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "launch/observe/svg_chart.hpp"
#include "launch/process/formatted.hpp"

namespace troupe {
namespace {

// Student's t, 97.5 %, kParts - 1 degrees of freedom.
constexpr double kQuantile = 2.26;

// `spread`: half of the 95 % interval of the difference, where it is known.
std::string lower_loss(const MeasuredRun& run, double ours, const MeasuredRun& baseline, double theirs,
                       std::optional<double> spread) {
  const double by = std::abs(ours - theirs), most = std::max(ours, theirs);
  auto text = run.name() + " " + short_number(ours) + ", " + baseline.name() + " " + short_number(theirs) + "; ";
  if (by <= 1e-4 * std::abs(most)) return text + "they are the same.";
  text += by < spread.value_or(0) ? "no clear difference, " : (ours < theirs ? run : baseline).name() + " is lower by ";
  text += short_number(by) + (most > 0 ? " (" + percent_text(by / most) + ")" : "");
  return text + (spread ? ", 95 % interval " + short_number(by - *spread) + " to " + short_number(by + *spread) : "") +
         ".";
}

std::string compare_speed(const MeasuredRun& run, const MeasuredRun& baseline) {
  const auto pace = [](const MeasuredRun& of) {
    const auto& n = of.numbers;
    return of.name() + " " + short_number(n.samples_per_second) + " samples/s with " + std::to_string(n.world_size) +
           (n.world_size == 1 ? " rank" : " ranks");
  };
  const auto& a = run.numbers;
  const auto& b = baseline.numbers;
  const bool ahead = a.samples_per_second >= b.samples_per_second;
  const auto &faster = ahead ? run : baseline, &slower = ahead ? baseline : run;
  const double ratio = faster.numbers.samples_per_second / slower.numbers.samples_per_second;
  const double spread =
      std::exp(kQuantile * std::hypot(a.samples_error / a.samples_per_second, b.samples_error / b.samples_per_second));
  const bool sure = can_compare_speed(a, b);
  return "Speed: " + pace(run) + ", " + pace(baseline) + "; " +
         (sure && ratio <= spread ? "no clear difference, " + faster.name() + " has "
                                  : faster.name() + " is faster, ") +
         formatted("%.2f times the pace of ", ratio) + slower.name() +
         (sure ? formatted(", 95 %% interval %.2f to %.2f.", ratio / spread, ratio * spread)
               : "; " + std::string(kTooFewIntervals) + ".");
}

std::optional<std::string> compare_held_out(const MeasuredRun& run, const MeasuredRun& baseline) {
  if (run.held_out_loss.empty() || baseline.held_out_loss.empty()) return std::nullopt;
  const double ours = lowest(run.held_out_loss).second, theirs = lowest(baseline.held_out_loss).second;
  if (!std::isfinite(ours) || !std::isfinite(theirs)) return std::nullopt;
  return "Best held-out loss: " + lower_loss(run, ours, baseline, theirs, std::nullopt);
}

// Over the last steps that both have a log line of.
std::optional<std::string> compare_training(const MeasuredRun& run, const MeasuredRun& baseline) {
  double a = 0, b = 0, squares = 0, last = 0;
  std::size_t n = 0;
  auto other = baseline.loss.rbegin();
  for (auto mine = run.loss.rbegin(); mine != run.loss.rend() && n < kParts; ++mine) {
    while (other != baseline.loss.rend() && other->first > mine->first) ++other;
    if (other == baseline.loss.rend()) break;
    const double by = mine->second - other->second;
    if (other->first != mine->first || !std::isfinite(by)) continue;
    if (n++ == 0) last = mine->first;
    a += mine->second;
    b += other->second;
    squares += by * by;
  }
  if (n == 0) return std::nullopt;
  const auto count = static_cast<double>(n);
  const double mean = (a - b) / count, variance = std::max(0.0, squares / count - mean * mean);
  return formatted("Training loss, mean of the last %zu common log lines (to step %.0f): ", n, last) +
         lower_loss(run, a / count, baseline, b / count,
                    n == kParts ? std::optional(kQuantile * std::sqrt(variance / (count - 1))) : std::nullopt);
}

}  // namespace

std::vector<std::string> comparison(const MeasuredRun& run, const MeasuredRun& baseline) {
  std::vector<std::string> lines;
  if (run.numbers.samples_per_second > 0 && baseline.numbers.samples_per_second > 0)
    lines.push_back(compare_speed(run, baseline));
  if (auto line = compare_held_out(run, baseline)) lines.push_back(std::move(*line));
  if (auto line = compare_training(run, baseline)) lines.push_back(std::move(*line));
  return lines;
}

}  // namespace troupe
