#include "launch/report/run_report.hpp"

#include <algorithm>

#include "launch/observe/svg_chart.hpp"
#include "launch/process/formatted.hpp"
#include "launch/report/page_style.hpp"
#include "launch/report/run_charts.hpp"
#include "launch/report/run_comparison.hpp"
#include "launch/report/run_events.hpp"

namespace troupe {
namespace {

std::string fixed(double value, int digits) { return formatted("%.*f", digits, value); }

std::string card(const std::string& name, const std::string& value) {
  return "<div><span>" + html_escaped(name) + "</span><b>" + html_escaped(value) + "</b></div>";
}

std::string at_step(const std::string& value, double step) { return value + " at step " + fixed(step, 0); }

std::string loss_cards(const MeasuredRun& run) {
  std::string html;
  if (!run.loss.empty()) {
    const auto best = lowest(run.loss);
    html += card("last loss", short_number(run.loss.back().second)) +
            card("best loss", at_step(short_number(best.second), best.first));
  }
  if (!run.held_out_loss.empty()) {
    const auto best = lowest(run.held_out_loss);
    html += card("best held-out loss", at_step(short_number(best.second), best.first));
  }
  if (!run.accuracy.empty()) html += card("last accuracy", percent_text(run.accuracy.back().second / 100));
  if (!run.held_out_accuracy.empty()) {
    const auto best = highest(run.held_out_accuracy);
    html += card("best held-out accuracy", at_step(percent_text(best.second / 100), best.first));
  }
  if (!run.learning_rate.empty()) html += card("last learning rate", short_number(run.learning_rate.back().second));
  return html;
}

std::string memory_cards(const MeasuredRun& run) {
  const auto peak = [](const char* name, const StepPoints& points) {
    return points.empty() ? std::string() : card(name, short_number(highest(points).second) + " GiB");
  };
  return peak("peak memory, rank 0", run.memory) + peak("peak device memory, rank 0", run.device_reserved);
}

std::string facts_html(const RunHistory& run) {
  std::string html = "<p class=\"soft\">";
  const auto& f = run.facts;
  if (!f.started.empty()) html += "began " + html_escaped(f.started) + " ";
  if (!f.job_id.empty()) html += "· job " + html_escaped(f.job_id) + " ";
  if (!f.strategy.empty()) html += "· " + html_escaped(f.strategy) + " over " + html_escaped(f.backend) + " ";
  if (!f.version.empty()) html += "· troupe " + html_escaped(f.version) + " ";
  html += "</p>\n";
  if (!f.command.empty()) html += "<p><code>" + html_escaped(f.command) + "</code></p>\n";
  for (const auto& remark : run.remarks) html += "<p class=\"missing\">" + html_escaped(remark) + "</p>\n";
  return html;
}

std::string head(const MeasuredRun& run, const RunOutcome& outcome) {
  const auto& n = run.numbers;
  std::string html = "<h1>Run " + html_escaped(run.name()) + "</h1>\n<div class=\"outcome " +
                     (outcome.good ? "fine" : "problem") + "\"><p><b>" + html_escaped(outcome.word) + ".</b> " +
                     html_escaped(outcome.why) + "</p><p>Next: " + html_escaped(outcome.next) + "</p></div>\n";
  html += "<div class=\"cards\">" + card("steps", std::to_string(n.steps)) +
          card("wall time", duration_text(n.wall_s)) +
          card("lost to failures",
               n.membership_changes == 0
                   ? "none"
                   : duration_text(n.stalled_s) + " (" + percent_text(n.stalled_s / std::max(1e-9, n.wall_s)) + ")") +
          loss_cards(run);
  if (n.world_size > 0) html += card("ranks", std::to_string(n.world_size));
  if (n.intervals > 0) {
    html += card("samples/s", short_number(n.samples_per_second));
    if (n.tokens_per_second > 0) html += card("tokens/s", short_number(n.tokens_per_second));
    html += card("time of a step", duration_text(n.step_ms / 1000));
  }
  return html + memory_cards(run) + "</div>\n" + facts_html(run.history);
}

std::string compared_html(const RunReport& report) {
  if (report.baseline == nullptr) return {};
  auto html = "<h2>Compared with " + html_escaped(report.baseline->name()) + "</h2>\n";
  for (const auto& line : report.comparison) html += "<p>" + html_escaped(line) + "</p>\n";
  if (report.comparison.empty()) html += "<p class=\"missing\">The records have nothing in common to compare.</p>\n";
  return html;
}

std::string advice_html(const std::vector<Advice>& advice) {
  std::string problems, notes;
  for (const auto& item : advice) {
    (item.problem ? problems : notes) +=
        "<div class=\"advice " +
        std::string(item.problem          ? "problem"
                    : item.remedy.empty() ? "fine"
                                          : "note") +
        "\"><b>" + html_escaped(item.subject) + "</b>: " + html_escaped(item.finding) +
        (item.remedy.empty() ? "" : " <em>Try: " + html_escaped(item.remedy) + ".</em>") + "</div>\n";
  }
  return "<h2>Advice</h2>\n" +
         (problems.empty() ? "<p>Nothing stands out that costs time.</p>\n"
                           : "<p class=\"soft\">The most valuable first.</p>\n" + problems) +
         notes;
}

std::string split_html(const RunNumbers& n) {
  std::string html = "<h2>Timeline of a step</h2>\n";
  if (n.intervals == 0)
    return html + "<p class=\"missing\">No log line yet: the first comes after log_interval steps.</p>\n";
  struct Phase {
    BarPart part;
    const char* meaning = "";
  };
  const Phase phases[] = {
      {{"data wait", n.data}, "for the next batch; above 10 % the data loader is too slow"},
      {{"forward", n.forward}, "the model and the loss"},
      {{"backward", n.backward}, "gradients; full buckets are reduced meanwhile"},
      {{"collectives in forward and backward", n.collectives},
       "waiting for other ranks: FSDP's gathers, pipeline stages, SyncBatchNorm"},
      {{"exposed gradient reduction and vote", n.exposed},
       "waiting after backward for the last buckets, and for all ranks to agree on the step"},
      {{"optimizer", n.optimizer}, "the update of the weights"},
      {{"validation", n.validation}, "on held-out data, spread over the steps"},
      {{"checkpoint", n.checkpoint}, "waiting for a save, spread over the steps"},
      {{"other", n.rest}, n.has_split ? "" : "forward, backward and optimizer, too: the records are older"}};
  std::vector<BarPart> parts;
  std::string rows;
  for (const auto& [part, meaning] : phases) {
    rows += "<tr><th><i class=\"b" + std::to_string(parts.size()) + "\"></i>" + part.name + "<div class=\"soft\">" +
            meaning + "</div></th><td class=\"number\">" + fixed(part.value * n.step_ms, 2) +
            " ms</td><td class=\"number\">" + percent_text(part.value) + "</td></tr>\n";
    parts.push_back(part);
  }
  html += "<p>A step takes " + duration_text(n.step_ms / 1000) + ": rank 0, mean of " + std::to_string(n.intervals) +
          " log intervals" +
          (n.left_out > 0
               ? " (" + std::to_string(n.left_out) + " left out: warm-up, changes of membership, other world sizes)"
               : "") +
          ". Forward, backward and optimizer are useful work. ";
  if (n.world_size > 1)
    html += "Exposed communication is " + percent_text(n.communication()) +
            " of the step; above 30 % it is worth a change.";
  html += "</p>\n" + svg_bar("phases of a step, as in the table", parts, 1) +
          "<table><thead><tr><th>phase, in order</th><th>time</th><th>share</th></tr></thead>\n" + rows + "</table>\n";
  if (n.world_size > 1 && n.reduce_ms > 0)
    html += "<p>Beside these phases the reducer spends " + fixed(n.reduce_ms, 2) + " ms of a step in collectives, on " +
            short_number(n.buckets) + " buckets of " + short_number(n.bucket_mib) + " MiB. At least " +
            percent_text(n.overlap) + " of that overlaps with compute and costs nothing.</p>\n";
  return html;
}

std::string queues_html(const RunNumbers& n) {
  if (!n.has_split || n.intervals == 0) return {};
  const auto row = [&](const char* edge, const std::string& queued, const char* who, double wait) {
    return std::string("<tr><td>") + edge + "</td><td>" + queued + "</td><td>" + who + " waits " + percent_text(wait) +
           " of a step</td></tr>\n";
  };
  return "<h2>Queues between the parts of a rank</h2>\n<p class=\"soft\">A rank is made of actors that send each other "
         "messages. A queue that is always empty has a slow sender, one that is never empty a slow receiver.</p>\n"
         "<table><thead><tr><th>from → to</th><th>queue, mean</th><th>wait</th></tr></thead>\n" +
         row("data loader → compute", short_number(n.loader_queue) + " batches", "compute", n.data) +
         row("compute → reducer", short_number(n.reducer_queue) + " buckets", "the reducer",
             std::clamp(1 - n.reduce_ms / std::max(1e-9, n.step_ms), 0.0, 1.0)) +
         row("reducer → compute", "", "compute", n.exposed) +
         row("compute → checkpointer", "", "compute", n.checkpoint) + "</table>\n";
}

std::string ranks_html(const RunNumbers& n) {
  std::string html = "<h2>Ranks compared</h2>\n";
  if (n.ranks.empty()) return html + "<p class=\"missing\">The records do not say what each rank did.</p>\n";
  if (n.ranks.size() == 1) return html + "<p>One rank: nothing to compare.</p>\n";
  html +=
      "<p>The time of a step that each rank works, without waiting for others. Equal bars are good: all wait for the "
      "longest. It takes " +
      percent_text(n.imbalance) + " longer than the mean. Idle, mean of the ranks: " + percent_text(n.idle) +
      " of a step" +
      (n.slow_intervals > 0 ? "; in " + std::to_string(n.slow_intervals) + " of " + std::to_string(n.intervals) +
                                  " log intervals a rank was named slow"
                            : std::string()) +
      ".</p>\n";
  std::vector<std::size_t> order(n.ranks.size());
  double longest = 0;
  for (std::size_t r = 0; r < order.size(); ++r) {
    order[r] = r;
    longest = std::max(longest, static_cast<double>(n.ranks[r].total_ms()));
  }
  constexpr std::size_t kMostRanks = 64;
  if (order.size() > kMostRanks) {
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return n.ranks[a].total_ms() > n.ranks[b].total_ms(); });
    order.resize(kMostRanks);
    html += "<p class=\"soft\">The slowest " + std::to_string(kMostRanks) + " of " + std::to_string(n.ranks.size()) +
            ".</p>";
  }
  html += "<table class=\"ranks\">";
  for (const auto r : order) {
    const auto& rank = n.ranks[r];
    const auto name = "rank " + std::to_string(r) + (r < n.hosts.size() ? " (" + n.hosts[r] + ")" : std::string());
    html += "<tr><th>" + html_escaped(name) + "</th><td>" +
            svg_bar(name + ": data wait, forward, backward",
                    {{"data wait", static_cast<double>(rank.data_ms)},
                     {"forward", static_cast<double>(rank.forward_ms)},
                     {"backward", static_cast<double>(rank.backward_ms)}},
                    longest) +
            "</td><td class=\"number\">" + fixed(static_cast<double>(rank.total_ms()), 2) + " ms</td></tr>\n";
  }
  return html + "</table>" + svg_legend({"data wait", "forward", "backward"}) + "\n";
}

}  // namespace

RunReport report_on(const MeasuredRun& run, const MeasuredRun* baseline) {
  RunReport report{run, baseline, outcome_of(run.history), {}, {}};
  const bool has_fewer = baseline != nullptr && baseline->numbers.world_size < run.numbers.world_size;
  if (baseline != nullptr) report.comparison = comparison(run, *baseline);
  report.advice = advise(run.numbers, has_fewer ? &baseline->numbers : nullptr);
  return report;
}

std::string report_html(const RunReport& report) {
  const auto& history = report.run.history;
  const auto& numbers = report.run.numbers;
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
         "<meta name=\"viewport\" content=\"width=device-width\"><title>Run " +
         html_escaped(report.run.name()) + "</title>\n<style>" + page_style() + "</style></head>\n<body><main>\n" +
         head(report.run, report.outcome) + compared_html(report) + split_html(numbers) + failures_html(history) +
         advice_html(report.advice) + training_html(report.run, report.baseline) + own_metrics_html(history) +
         ranks_html(numbers) + queues_html(numbers) + trace_html(history) + events_html(history) +
         "</main></body></html>\n";
}

std::vector<std::string> report_lines(const RunReport& report) {
  auto lines = outcome_lines(report.outcome, report.run);
  lines.insert(lines.end(), report.comparison.begin(), report.comparison.end());
  for (const auto& remark : report.run.history.remarks) lines.push_back("missing: " + remark);
  for (const auto& item : report.advice)
    lines.push_back(item.subject + ": " + item.finding + (item.remedy.empty() ? "" : " Try: " + item.remedy + "."));
  return lines;
}

}  // namespace troupe
