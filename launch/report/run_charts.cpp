#include "launch/report/run_charts.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "launch/observe/svg_chart.hpp"
#include "launch/report/run_events.hpp"

namespace troupe {
namespace {

using Kind = MetricRecord::Kind;

// Changes of membership, at their steps.
std::vector<ChartMark> step_marks(const RunHistory& run) {
  std::vector<ChartMark> all;
  for (const auto& record : run.records) {
    if (is_change(record)) all.push_back({static_cast<double>(record.step), record.text});
  }
  return all;
}

struct TwoRuns {
  const MeasuredRun& run;
  const MeasuredRun* baseline;

  /// A line of each run; a run without these points has none.
  template <class Get>
  void add(Chart& chart, const std::string& title, const Get& get, bool dots = false) const {
    for (const auto* of : {&run, baseline}) {
      auto points = of == nullptr ? StepPoints() : std::invoke(get, *of);
      if (points.empty()) continue;
      const auto name = baseline == nullptr ? title : title + ", " + of->name();
      chart.lines.push_back({name, std::move(points), dots});
    }
  }
  Chart chart(const char* title, const char* unit, bool from_zero, const char* note) const {
    return {title, "step", unit, {}, step_marks(run.history), from_zero, note};
  }
};

Chart loss_chart(const TwoRuns& runs) {
  auto chart = runs.chart("Loss", "mean over a log interval, all ranks", false, "");
  runs.add(chart, "training", &MeasuredRun::loss);
  runs.add(chart, "held out", &MeasuredRun::held_out_loss, true);
  if (runs.run.held_out_loss.empty())
    chart.note = "No validation: it comes after every validate_every epochs, if the program has held-out data.";
  return chart;
}

Chart accuracy_chart(const TwoRuns& runs) {
  auto chart = runs.chart("Accuracy", "% of the samples", false, "High is good.");
  runs.add(chart, "training", &MeasuredRun::accuracy);
  runs.add(chart, "held out", &MeasuredRun::held_out_accuracy, true);
  return chart;
}

Chart rate_chart(const TwoRuns& runs) {
  auto chart = runs.chart("Learning rate", "of the last step of a log interval", true, "");
  runs.add(chart, "learning rate", &MeasuredRun::learning_rate);
  return chart;
}

Chart pace_chart(const TwoRuns& runs) {
  auto chart =
      runs.chart("Throughput", "samples/s, all ranks", true, "A level line is good; a dip is a step that waited.");
  runs.add(chart, "samples/s",
           [](const MeasuredRun& of) { return series(of.history, Kind::train, "throughput(samples/s)"); });
  return chart;
}

Chart waits_chart(const TwoRuns& runs) {
  auto chart = runs.chart("Waiting", "% of a step, rank 0", true, "Low is good: compute does nothing in this time.");
  const auto add = [&](const char* title, const char* metric) {
    chart.lines.push_back({title, series(runs.run.history, Kind::train, metric), false});
  };
  add("exposed gradient reduction and vote", "time_metrics/exposed_communication(%)");
  add("collectives in forward and backward", "time_metrics/collectives(%)");
  add("data wait", "time_metrics/data_loading(%)");
  return chart;
}

Chart memory_chart(const TwoRuns& runs) {
  auto chart =
      runs.chart("Memory", "GiB, rank 0", true, "The most so far. A line that never levels off may be a leak.");
  runs.add(chart, "process", &MeasuredRun::memory);
  runs.add(chart, "device, tensors", &MeasuredRun::device_memory);
  runs.add(chart, "device, reserved", &MeasuredRun::device_reserved);
  return chart;
}

// Of log intervals, and of validations.
using OwnLines = std::map<std::string, std::vector<ChartLine>>;

std::string own_charts(const char* heading, const OwnLines& lines, const std::vector<ChartMark>& marks) {
  constexpr std::size_t kMost = 24;
  if (lines.empty()) return {};
  std::string html = std::string("<h2>") + heading + "</h2>\n";
  std::size_t drawn = 0;
  for (auto [name, of_name] : lines) {  // a copy, whose lines are cut
    if (++drawn > kMost) break;
    for (auto& line : of_name) line.points = by_step(std::move(line.points));
    std::erase_if(of_name, [](const auto& line) { return line.points.empty(); });
    html += svg_chart({name, "step", "", std::move(of_name), marks, false});
  }
  if (lines.size() > kMost)
    html += "<p class=\"missing\">" + std::to_string(lines.size() - kMost) + " more are in metrics.jsonl.</p>\n";
  return html;
}

}  // namespace

std::string training_html(const MeasuredRun& run, const MeasuredRun* baseline) {
  const TwoRuns runs{run, baseline};
  std::string html =
      "<h2>Training</h2>\n<p class=\"soft\">Point at a chart for the values there; of several log intervals: mean "
      "(lowest to highest).</p>\n" +
      svg_chart(loss_chart(runs));
  const auto add_known = [&](const Chart& chart) {
    if (!chart.lines.empty()) html += svg_chart(chart);
  };
  add_known(accuracy_chart(runs));
  add_known(rate_chart(runs));
  html += svg_chart(pace_chart(runs)) + svg_chart(waits_chart(runs));
  add_known(memory_chart(runs));
  return html;
}

std::string own_metrics_html(const RunHistory& run) {
  const std::string held_out_prefix = kValidationPrefix;
  OwnLines strategy, program;
  const auto add = [&](const MetricRecord& record, std::string name, double value) {
    const bool held_out = record.kind == Kind::validation;
    if (held_out && name.starts_with(held_out_prefix)) name.erase(0, held_out_prefix.size());
    auto& of_name = (name.starts_with(kStrategyPrefix) ? strategy : program)[name];
    if (of_name.empty()) of_name = {{"training", {}, false}, {"held out", {}, true}};
    of_name[held_out ? 1 : 0].points.emplace_back(static_cast<double>(record.step), value);
  };
  for (const auto& record : run.records) {
    for (const auto& [name, value] : record.own) add(record, name, value);
  }
  const auto marks = step_marks(run);
  return own_charts("The strategy's own figures", strategy, marks) +
         own_charts("The program's own metrics", program, marks);
}

}  // namespace troupe
