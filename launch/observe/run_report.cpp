#include "launch/observe/run_report.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "launch/observe/svg_chart.hpp"
#include "launch/process/formatted.hpp"

namespace troupe {
namespace {

using Kind = MetricRecord::Kind;

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #767676; --paper: #fff; --line: #ddd; --warn: #b3261e; --good: #2e7d32; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #9a9a9a; --paper: #16181b; --line: #3a3d41; --warn: #ff8a80; --good: #81c784; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
figure { margin: 1rem 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; overflow: visible; }
svg text { font-size: 11px; fill: var(--soft); } svg .grid { stroke: var(--line); } svg .mark { stroke: var(--warn); stroke-dasharray: 4 3; stroke-width: 1.5; }
polyline { fill: none; stroke-width: 1.6; } svg.bar { height: 18px; display: block; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .15rem .6rem .15rem 0; vertical-align: top; } th { font-weight: 500; white-space: nowrap; }
td:nth-child(2) { width: 60%; } table.plain td { width: auto; }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; } .cards div { border: 1px solid var(--line); border-radius: 6px; padding: .4rem .8rem; }
.cards b { display: block; font-size: 1.2rem; } .cards span, .missing, .soft { color: var(--soft); }
.problem { border-left: 4px solid var(--warn); } .fine { border-left: 4px solid var(--good); } .advice { padding: .1rem .8rem; margin: .6rem 0; }
.legend span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 .8em; border-radius: 2px; }
)css";

constexpr const char* kPalette[] = {"#3b6fb6", "#4aa3a2", "#d98f2b", "#b3446c", "#7b5ea7",
                                    "#6a994e", "#8d6e63", "#c9a227", "#9e9e9e"};

std::string style() {
  std::string css = kStyle;
  int i = 0;
  for (const char* colour : kPalette) {
    const auto n = std::to_string(i++);
    css += "polyline.c" + n + "{stroke:" + colour + "} rect.c" + n + ",circle.c" + n + "{fill:" + colour + "} .b" + n +
           "{background:" + colour + "}\n";
  }
  return css;
}

std::string percent(double share) { return formatted("%.1f %%", 100 * share); }

std::string fixed(double value, int digits) { return formatted("%.*f", digits, value); }

using Points = std::vector<std::pair<double, double>>;

// A resumed run's steps rise again from where it went on.
Points by_step(Points points) {
  std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return points;
}

Points series(const RunHistory& run, Kind kind, const char* name) {
  Points points;
  for (const auto& record : run.records) {
    if (record.kind == kind) points.emplace_back(static_cast<double>(record.step), record.value(name));
  }
  return by_step(std::move(points));
}

bool is_change(const MetricRecord& record) { return record.kind == Kind::event && record.generation > 1; }

std::vector<ChartMark> marks(const RunHistory& run) {
  std::vector<ChartMark> all;
  for (const auto& record : run.records) {
    if (is_change(record)) all.push_back({static_cast<double>(record.step), record.text});
  }
  return all;
}

double begin_of(const RunHistory& run) {
  for (const auto& record : run.records) {
    if (record.wall_time > 0) return record.wall_time;
  }
  return 0;
}

std::string card(const std::string& name, const std::string& value) {
  return "<div><span>" + html_escaped(name) + "</span><b>" + html_escaped(value) + "</b></div>";
}

std::string outcome(const RunHistory& run) {
  const auto& last = run.records.back();
  if (last.kind != Kind::end) return "no end in the records: killed, or still running";
  return last.text.empty() ? "ended" : "failed";
}

std::string head(const RunHistory& run, const RunNumbers& n) {
  std::string html = "<h1>Run " + html_escaped(run.folder) + "</h1>\n<p class=\"soft\">";
  const auto& f = run.facts;
  if (!f.started.empty()) html += "began " + html_escaped(f.started) + " ";
  if (!f.job_id.empty()) html += "· job " + html_escaped(f.job_id) + " ";
  if (!f.strategy.empty()) html += "· " + html_escaped(f.strategy) + " over " + html_escaped(f.backend) + " ";
  if (!f.version.empty()) html += "· troupe " + html_escaped(f.version) + " ";
  html += "</p>\n";
  if (!f.command.empty()) html += "<p><code>" + html_escaped(f.command) + "</code></p>\n";
  const auto losses = series(run, Kind::train, "loss_metrics/global_avg_loss");
  html += "<div class=\"cards\">" + card("outcome", outcome(run)) + card("steps", std::to_string(n.steps));
  if (n.world_size > 0) html += card("ranks", std::to_string(n.world_size));
  if (!losses.empty()) html += card("last loss", short_number(losses.back().second));
  if (n.intervals > 0) {
    html += card("a step", duration_text(n.step_ms / 1000)) + card("samples/s", short_number(n.samples_per_second));
    if (n.tokens_per_second > 0) html += card("tokens/s", short_number(n.tokens_per_second));
    html += card("exposed communication", percent(n.communication()));
    if (n.has_split) html += card("idle", percent(n.idle));
  }
  html += card("time", duration_text(n.wall_s)) + "</div>\n";
  if (run.records.back().kind == Kind::end && !run.records.back().text.empty())
    html += "<p class=\"advice problem\">It ended with: " + html_escaped(run.records.back().text) + "</p>\n";
  for (const auto& remark : run.remarks) html += "<p class=\"missing\">" + html_escaped(remark) + "</p>\n";
  return html;
}

std::string advice_html(const std::vector<Advice>& advice) {
  std::string html = "<h2>Advice</h2>\n";
  if (std::none_of(advice.begin(), advice.end(), [](const Advice& a) { return a.problem; }))
    html += "<p>Nothing stands out that costs time.</p>\n";
  for (const auto& item : advice) {
    html += "<div class=\"advice " + std::string(item.problem ? "problem" : "fine") + "\"><b>" +
            html_escaped(item.subject) + "</b>: " + html_escaped(item.finding) +
            (item.remedy.empty() ? "" : " <i>Try: " + html_escaped(item.remedy) + ".</i>") + "</div>\n";
  }
  return html;
}

std::string loss_html(const RunHistory& run) {
  Chart loss{"Loss",      "step",
             "mean loss", {{"training", series(run, Kind::train, "loss_metrics/global_avg_loss"), false}},
             marks(run),  false};
  auto held_out = series(run, Kind::validation, "validation_metrics/loss");
  if (!held_out.empty()) loss.lines.push_back({"held out", std::move(held_out), true});
  Chart pace{"Throughput", "step",
             "samples/s",  {{"samples/s", series(run, Kind::train, "throughput(samples/s)"), false}},
             marks(run),   true};
  return "<h2>Training</h2>\n" + svg_chart(loss) + svg_chart(pace);
}

// A chart for each metric that the program logs itself: of training a line, of validations dots.
std::string own_html(const RunHistory& run) {
  constexpr std::size_t kMost = 24;
  const std::string prefix = kValidationPrefix;
  std::map<std::string, std::vector<ChartLine>> lines;
  for (const auto& record : run.records) {
    for (const auto& [name, value] : record.own) {
      const bool held_out = record.kind == Kind::validation;
      auto& of_name = lines[held_out && name.starts_with(prefix) ? name.substr(prefix.size()) : name];
      if (of_name.empty()) of_name = {{"training", {}, false}, {"held out", {}, true}};
      of_name[held_out ? 1 : 0].points.emplace_back(static_cast<double>(record.step), value);
    }
  }
  if (lines.empty()) return {};
  std::string html = "<h2>The program's own metrics</h2>\n";
  std::size_t drawn = 0;
  for (auto& [name, of_name] : lines) {
    if (++drawn > kMost) break;
    for (auto& line : of_name) line.points = by_step(std::move(line.points));
    std::erase_if(of_name, [](const auto& line) { return line.points.empty(); });
    html += svg_chart({name, "step", "", std::move(of_name), marks(run), false});
  }
  if (lines.size() > kMost)
    html += "<p class=\"missing\">" + std::to_string(lines.size() - kMost) + " more are in metrics.jsonl.</p>\n";
  return html;
}

std::string split_html(const RunHistory& run, const RunNumbers& n) {
  std::string html = "<h2>Where the time of a step goes</h2>\n";
  if (n.intervals == 0) return html + "<p class=\"missing\">There is no log interval in the records.</p>\n";
  if (!n.has_split)
    html +=
        "<p class=\"missing\">These records are of an older troupe: forward, backward and optimizer are in the "
        "rest.</p>\n";
  const std::vector<BarPart> parts{{"data wait", n.data},
                                   {"forward", n.forward},
                                   {"backward", n.backward},
                                   {"collectives in forward and backward", n.collectives},
                                   {"exposed reduction and vote", n.exposed},
                                   {"optimizer", n.optimizer},
                                   {"validation", n.validation},
                                   {"saving", n.checkpoint},
                                   {"rest", n.rest}};
  std::vector<std::string> names;
  names.reserve(parts.size());
  for (const auto& part : parts) names.push_back(part.name);
  html += "<p>Rank 0, mean of " + std::to_string(n.intervals) + " log intervals" +
          (n.left_out > 0
               ? "; " + std::to_string(n.left_out) + " left out: warm-up, changes of membership, other world sizes"
               : "") +
          ".</p>\n";
  html += "<table>" + svg_bar("step", parts, 1, duration_text(n.step_ms / 1000)) + "</table>" + svg_legend(names) +
          "<table class=\"plain\">\n";
  for (const auto& part : parts)
    html += "<tr><th>" + html_escaped(part.name) + "</th><td>" + fixed(part.value * n.step_ms, 3) + " ms</td><td>" +
            percent(part.value) + "</td></tr>\n";
  html += "<tr><th>reducer in collectives, beside these</th><td>" + fixed(n.reduce_ms, 3) + " ms</td><td>" +
          (n.reduce_ms > 0 ? percent(n.overlap) + " of that hidden, or more" : "") + "</td></tr>\n";
  html += "<tr><th>buckets</th><td>" + short_number(n.buckets) + " of " + short_number(n.bucket_mib) +
          " MiB</td><td></td></tr></table>\n";
  const Chart exposed{"Exposed communication",
                      "step",
                      "% of a step",
                      {{"reduction and vote", series(run, Kind::train, "time_metrics/exposed_communication(%)"), false},
                       {"in forward and backward", series(run, Kind::train, "time_metrics/collectives(%)"), false},
                       {"data wait", series(run, Kind::train, "time_metrics/data_loading(%)"), false}},
                      marks(run),
                      true};
  html += svg_chart(exposed);
  if (!n.has_split) return html;
  html +=
      "<h2>Edges between actors</h2>\n<table class=\"plain\"><tr><th>from → to</th><th>waiting messages, mean over "
      "time</th><th>the "
      "receiver waits</th></tr>\n";
  const auto row = [&](const char* edge, const std::string& queued, double wait) {
    html +=
        std::string("<tr><td>") + edge + "</td><td>" + queued + "</td><td>" + percent(wait) + " of a step</td></tr>\n";
  };
  row("loader → compute", short_number(n.loader_queue) + " batches", n.data);
  row("compute → reducer", short_number(n.reducer_queue) + " buckets",
      std::clamp(1 - n.reduce_ms / std::max(1e-9, n.step_ms), 0.0, 1.0));
  row("reducer → compute", "", n.exposed);
  html += "<tr><td>compute → checkpointer</td><td></td><td>compute waits " + percent(n.checkpoint) +
          " of a step for it</td></tr></table>\n";
  return html;
}

std::string ranks_html(const RunNumbers& n) {
  std::string html = "<h2>Ranks beside each other</h2>\n";
  if (n.ranks.empty()) return html + "<p class=\"missing\">The records do not say what each rank did.</p>\n";
  html +=
      "<p>What each rank spends on its own part of a step, without waiting for others. Idle share, mean of the "
      "ranks: " +
      percent(n.idle) + "; the slowest takes " + percent(n.imbalance) + " longer than the mean" +
      (n.slow_intervals > 0 ? "; in " + std::to_string(n.slow_intervals) + " of " + std::to_string(n.intervals) +
                                  " log intervals a rank was named slow"
                            : std::string()) +
      ".</p>\n<table>";
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
    html = html.substr(0, html.rfind("<table>")) + "<p class=\"soft\">The slowest " + std::to_string(kMostRanks) +
           " of " + std::to_string(n.ranks.size()) + ".</p><table>";
  }
  for (const auto r : order) {
    const auto& rank = n.ranks[r];
    const auto host = r < n.hosts.size() ? " (" + n.hosts[r] + ")" : std::string();
    html += svg_bar("rank " + std::to_string(r) + host,
                    {{"data wait", static_cast<double>(rank.data_ms)},
                     {"forward", static_cast<double>(rank.forward_ms)},
                     {"backward", static_cast<double>(rank.backward_ms)}},
                    longest, fixed(static_cast<double>(rank.total_ms()), 2) + " ms");
  }
  return html + "</table>" + svg_legend({"data wait", "forward", "backward"}) + "\n";
}

std::string describe(const MetricRecord& record) {
  if (record.kind == Kind::start)
    return record.generation > 1 ? "another process is rank 0"
           : record.step > 0     ? "the run went on from a checkpoint"
                                 : "";
  if (record.kind == Kind::end) return record.text.empty() ? "the run ended" : "the run failed: " + record.text;
  if (record.kind != Kind::event) return "";
  if (record.generation == 0) return record.text;
  std::string text =
      record.generation == 1 ? "the job began" : "membership " + std::to_string(record.generation) + ": " + record.text;
  text += "; " + std::to_string(record.members.size()) + (record.members.size() == 1 ? " rank" : " ranks");
  for (const auto& place : record.members) {
    if (place.newcomer) text += ", rank " + std::to_string(place.rank) + " new on " + place.host;
  }
  return text;
}

std::string events_html(const RunHistory& run) {
  constexpr std::size_t kMost = 500;
  const double begin = begin_of(run);
  std::string html = "<h2>Failures and recoveries</h2>\n", rows;
  Chart chart{"Steps done over time; dashed: a change of membership",
              "seconds since the begin",
              "step",
              {{"step", {}, false}},
              {},
              true};
  std::size_t events = 0;
  double before = begin;
  for (const auto& record : run.records) {
    const double at = record.wall_time - begin;
    if (record.kind == Kind::train) chart.lines[0].points.emplace_back(at, static_cast<double>(record.step));
    if (is_change(record)) chart.marks.push_back({at, describe(record)});
    if (const auto text = describe(record); !text.empty() && ++events <= kMost) {
      std::string stalled = record.stalled_ms > 0 ? duration_text(record.stalled_ms / 1000) : "";
      if (stalled.empty() && is_change(record)) stalled = "no more than " + duration_text(record.wall_time - before);
      rows += "<tr><td>" + duration_text(at) + "</td><td>" + std::to_string(record.step) + "</td><td>" +
              html_escaped(text) + "</td><td>" + stalled + "</td></tr>\n";
    }
    if (record.kind != Kind::start) before = record.wall_time;
  }
  std::stable_sort(chart.lines[0].points.begin(), chart.lines[0].points.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  html += svg_chart(chart);
  if (rows.empty()) return html + "<p class=\"missing\">The records tell of no event.</p>\n";
  html += "<table class=\"plain\"><tr><th>after</th><th>step</th><th>what</th><th>stood still</th></tr>\n" + rows +
          "</table>\n";
  if (events > kMost)
    html += "<p class=\"soft\">" + std::to_string(events - kMost) + " more are in metrics.jsonl.</p>\n";
  return html;
}

// The last trace of the run, as the run itself told of it.
std::string trace_html(const RunHistory& run) {
  const auto found =
      std::find_if(run.records.rbegin(), run.records.rend(), [](const MetricRecord& r) { return r.event == "trace"; });
  if (found == run.records.rend()) return {};
  std::string html = "<h2>Trace</h2>\n<p>" + html_escaped(found->text) + "</p>\n";
  if (found->text.find("; overlap ") == std::string::npos) return html;  // it was not written
  return html + "<p><a href=\"trace.json\">trace.json</a> opens in ui.perfetto.dev and chrome://tracing.</p>\n";
}

}  // namespace

std::string report_html(const RunHistory& run, const RunNumbers& numbers, const std::vector<Advice>& advice) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
         "<meta name=\"viewport\" content=\"width=device-width\"><title>Run " +
         html_escaped(run.folder) + "</title>\n<style>" + style() + "</style></head>\n<body>\n" + head(run, numbers) +
         advice_html(advice) + loss_html(run) + own_html(run) + split_html(run, numbers) + ranks_html(numbers) +
         trace_html(run) + events_html(run) + "</body></html>\n";
}

}  // namespace troupe
