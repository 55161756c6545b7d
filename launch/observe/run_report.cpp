#include "launch/observe/run_report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "launch/observe/svg_chart.hpp"
#include "launch/process/formatted.hpp"

namespace troupe {
namespace {

using Kind = MetricRecord::Kind;

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #6b6b6b; --paper: #fff; --line: #ddd; --warn: #b3261e; --good: #2e7d32; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #9a9a9a; --paper: #16181b; --line: #3a3d41; --warn: #ff8a80; --good: #81c784; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; } code { overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
figure { margin: 1rem 0 1.6rem; } figcaption .soft { display: block; } svg { width: 100%; height: auto; display: block; overflow: visible; margin-top: .6rem; } a { color: inherit; }
svg text { font-size: 13px; fill: var(--soft); } svg .grid { stroke: var(--line); } svg .mark { stroke: var(--warn); stroke-dasharray: 4 3; stroke-width: 1.5; }
polyline { fill: none; stroke-width: 1.6; } polyline.c1 { stroke-dasharray: 8 3; } polyline.c2 { stroke-dasharray: 2 3; } svg.bar { height: 18px; margin: 0; } rect { stroke: var(--paper); }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; } th { font-weight: 500; }
.ranks td:nth-child(2) { width: 60%; } .number { white-space: nowrap; } thead th { color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; } .cards div { border: 1px solid var(--line); border-radius: 6px; padding: .3rem .7rem; }
.cards b { display: block; font-size: 1.15rem; } .cards span, .missing, .soft { color: var(--soft); } p.soft, .legend { margin: .3rem 0; }
.problem { border-left: 4px solid var(--warn); } .fine { border-left: 4px solid var(--good); } .advice, .outcome { padding: .1rem .8rem; margin: .6rem 0; }
.outcome p { margin: .3rem 0; } .legend span { display: inline-block; margin-right: 1em; } i[class] { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
@media (max-width: 600px) { svg text { font-size: 26px; } .ranks td:nth-child(2) { width: 45%; } svg .minor, .failures thead { display: none; } .failures td { display: block; padding: 0; }
  .failures td::before { content: attr(data-name) ": "; color: var(--soft); } .failures tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--line); } }
)css";

constexpr const char* kPalette[] = {"#4a7fc8", "#2f8f8e", "#c07a1c", "#c2527c", "#8a6cb8",
                                    "#5f8f43", "#9a7a6e", "#a68512", "#858585"};

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

// The rank that a failure names last is the one that it began with; -1: none.
int rank_in(const std::string& failure) {
  const auto at = failure.rfind("rank ");
  int rank = -1;
  return at != std::string::npos && std::sscanf(failure.c_str() + at, "rank %6d", &rank) == 1 ? rank : -1;
}

struct Outcome {
  std::string word, why, next;
  bool good = false;
};

Outcome outcome_of(const RunHistory& run) {
  const auto& last = run.records.back();
  const auto& code = run.facts.exit_code;
  const std::string resume = "The same command with --resume latest goes on from the last checkpoint, if there is one.";
  if (last.kind != Kind::end && code.empty())
    return {"not finished", "It is still running, or it was killed: the records have no end.",
            "troupe ps lists the jobs that run. " + resume};
  const std::string word = last.kind == Kind::end ? end_word(last) : "failed";
  const auto exit = code.empty() ? "" : " (exit code " + code + ")";
  if (word == "finished" && (code.empty() || code == "0"))
    return {word + exit, "The program came to its end.", "The advice below says what would make it faster.", true};
  if (word == "stopped")
    return {word + exit, "Signal " + std::to_string(last.signal) + " asked it to stop.", resume, true};
  const auto rank = rank_in(last.text);
  return {"failed" + exit,
          last.text.empty() ? "Rank 0 recorded no reason: it was killed, or another rank failed." : last.text,
          (rank < 0       ? "Read the ranks' logs in the run's folder. "
           : code.empty() ? "Read the output of rank " + std::to_string(rank) + ". "
                          : "Read the log: tail -n 50 " + run.folder + "/rank" + std::to_string(rank) + ".log. ") +
              resume};
}

// The lowest value of a metric, and where.
std::string best_of(const Points& points) {
  const auto best = std::min_element(points.begin(), points.end(), [](const auto& a, const auto& b) {
    return !std::isfinite(b.second) || a.second < b.second;
  });
  return short_number(best->second) + " at step " + fixed(best->first, 0);
}

std::string head(const RunHistory& run, const RunNumbers& n) {
  const auto outcome = outcome_of(run);
  std::string html = "<h1>Run " + html_escaped(run.folder) + "</h1>\n<div class=\"outcome " +
                     (outcome.good ? "fine" : "problem") + "\"><p><b>" + html_escaped(outcome.word) + ".</b> " +
                     html_escaped(outcome.why) + "</p><p>Next: " + html_escaped(outcome.next) + "</p></div>\n";
  const auto losses = series(run, Kind::train, "loss_metrics/global_avg_loss");
  const auto held_out = series(run, Kind::validation, "validation_metrics/loss");
  html +=
      "<div class=\"cards\">" + card("steps", std::to_string(n.steps)) + card("wall time", duration_text(n.wall_s)) +
      card("lost to failures", n.membership_changes == 0 ? "none"
                                                         : duration_text(n.stalled_s) + " (" +
                                                               percent(n.stalled_s / std::max(1e-9, n.wall_s)) + ")");
  if (!losses.empty())
    html += card("last loss", short_number(losses.back().second)) + card("best loss", best_of(losses));
  if (!held_out.empty()) html += card("best held-out loss", best_of(held_out));
  if (n.world_size > 0) html += card("ranks", std::to_string(n.world_size));
  if (n.intervals > 0) {
    html += card("samples/s", short_number(n.samples_per_second));
    if (n.tokens_per_second > 0) html += card("tokens/s", short_number(n.tokens_per_second));
    html += card("time of a step", duration_text(n.step_ms / 1000));
  }
  html += "</div>\n<p class=\"soft\">";
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

std::string advice_html(const std::vector<Advice>& advice) {
  std::string problems, notes;
  for (const auto& item : advice) {
    (item.problem ? problems : notes) +=
        "<div class=\"advice " + std::string(item.problem ? "problem" : "fine") + "\"><b>" +
        html_escaped(item.subject) + "</b>: " + html_escaped(item.finding) +
        (item.remedy.empty() ? "" : " <em>Try: " + html_escaped(item.remedy) + ".</em>") + "</div>\n";
  }
  return "<h2>Advice</h2>\n" +
         (problems.empty() ? "<p>Nothing stands out that costs time.</p>\n"
                           : "<p class=\"soft\">The most valuable first.</p>\n" + problems) +
         notes;
}

std::string training_html(const RunHistory& run, const RunHistory* baseline) {
  const auto lines = [&](const char* name, const char* title) {
    std::vector<ChartLine> all{{title, series(run, Kind::train, name), false}};
    if (baseline != nullptr)
      all.push_back({"baseline " + baseline->folder, series(*baseline, Kind::train, name), false});
    return all;
  };
  Chart loss{
      "Loss",     "step", "mean over a log interval, all ranks", lines("loss_metrics/global_avg_loss", "training"),
      marks(run), false};
  auto held_out = series(run, Kind::validation, "validation_metrics/loss");
  if (held_out.empty()) {
    loss.note = "No validation: it comes after every validate_every epochs, if the program has held-out data.";
  } else {
    loss.lines.push_back({"held out", std::move(held_out), true});
  }
  const Chart pace{"Throughput",
                   "step",
                   "samples/s, all ranks",
                   lines("throughput(samples/s)", "samples/s"),
                   marks(run),
                   true,
                   "A level line is good; a dip is a step that waited."};
  const Chart waits{
      "Waiting",
      "step",
      "% of a step, rank 0",
      {{"exposed gradient reduction and vote", series(run, Kind::train, "time_metrics/exposed_communication(%)"),
        false},
       {"collectives in forward and backward", series(run, Kind::train, "time_metrics/collectives(%)"), false},
       {"data wait", series(run, Kind::train, "time_metrics/data_loading(%)"), false}},
      marks(run),
      true,
      "Low is good: compute does nothing in this time."};
  return "<h2>Training</h2>\n" + svg_chart(loss) + svg_chart(pace) + svg_chart(waits);
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
            " ms</td><td class=\"number\">" + percent(part.value) + "</td></tr>\n";
    parts.push_back(part);
  }
  html += "<p>A step takes " + duration_text(n.step_ms / 1000) + ": rank 0, mean of " + std::to_string(n.intervals) +
          " log intervals" +
          (n.left_out > 0
               ? " (" + std::to_string(n.left_out) + " left out: warm-up, changes of membership, other world sizes)"
               : "") +
          ". Forward, backward and optimizer are useful work. ";
  if (n.world_size > 1)
    html += "Exposed communication is " + percent(n.communication()) + " of the step; above 30 % it is worth a change.";
  html += "</p>\n" + svg_bar("phases of a step, as in the table", parts, 1) +
          "<table><thead><tr><th>phase, in order</th><th>time</th><th>share</th></tr></thead>\n" + rows + "</table>\n";
  if (n.world_size > 1 && n.reduce_ms > 0)
    html += "<p>Beside these phases the reducer spends " + fixed(n.reduce_ms, 2) + " ms of a step in collectives, on " +
            short_number(n.buckets) + " buckets of " + short_number(n.bucket_mib) + " MiB. At least " +
            percent(n.overlap) + " of that overlaps with compute and costs nothing.</p>\n";
  return html;
}

std::string queues_html(const RunNumbers& n) {
  if (!n.has_split || n.intervals == 0) return {};
  const auto row = [&](const char* edge, const std::string& queued, const char* who, double wait) {
    return std::string("<tr><td>") + edge + "</td><td>" + queued + "</td><td>" + who + " waits " + percent(wait) +
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
      percent(n.imbalance) + " longer than the mean. Idle, mean of the ranks: " + percent(n.idle) + " of a step" +
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

using Members = std::vector<RunMember>;

// Of the membership before, those that the next one has no more.
Members lost_members(const Members& before, const Members& next) {
  Members lost;
  for (const auto& old : before) {
    const bool stays = std::any_of(next.begin(), next.end(),
                                   [&](const RunMember& place) { return place.slot == old.slot && !place.newcomer; });
    if (!stays) lost.push_back(old);
  }
  return lost;
}

std::string failure_row(const std::string& when, const Members& lost, const std::string& cause,
                        const std::string& follows, const std::string& time_lost) {
  std::string ranks, hosts;
  for (const auto& place : lost) {
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(place.rank);
    if (hosts.find(place.host) == std::string::npos) hosts += (hosts.empty() ? "" : ", ") + place.host;
  }
  std::string row;
  const auto cell = [&](const char* name, const std::string& text) {
    row += std::string("<td data-name=\"") + name + "\">" + html_escaped(text.empty() ? "-" : text) + "</td>";
  };
  cell("when", when);
  cell("rank", ranks);
  cell("host", hosts);
  cell("cause", cause);
  cell("what followed", follows);
  cell("time lost", time_lost);
  return "<tr>" + row + "</tr>\n";
}

std::string failures_html(const RunHistory& run) {
  constexpr std::size_t kMost = 500;
  const double begin = begin_of(run);
  Chart chart{"Progress",
              "seconds since the start",
              "steps done",
              {{"step", {}, false}},
              {},
              true,
              "A straight line is good; where it is flat the job stood still."};
  std::string html = "<h2>Failures and recoveries</h2>\n", rows;
  std::size_t failures = 0;
  double before = begin;
  Members members;
  for (const auto& record : run.records) {
    const double at = record.wall_time - begin;
    const auto when = duration_text(at) + ", step " + std::to_string(record.step);
    if (record.kind == Kind::train) chart.lines[0].points.emplace_back(at, static_cast<double>(record.step));
    if (is_change(record)) {
      chart.marks.push_back({at, record.text});
      const bool unseen = record.cause.empty() && !record.members.empty() && record.members[0].newcomer;
      const auto lost = lost_members(members, record.members);
      if (++failures <= kMost)
        rows += failure_row(when, lost,
                            unseen ? "not recorded, since rank 0 was lost: the launcher printed it" : record.cause,
                            record.text,
                            record.stalled_ms > 0 ? duration_text(record.stalled_ms / 1000)
                                                  : "at most " + duration_text(record.wall_time - before));
    }
    if (record.kind == Kind::end && !record.text.empty()) {
      const auto rank = static_cast<std::size_t>(rank_in(record.text));
      ++failures;
      rows += failure_row(when, rank < members.size() ? Members{members[rank]} : Members(), record.text,
                          "the run ended", "");
    }
    if (record.generation > 0 && record.kind == Kind::event) members = record.members;
    if (record.kind != Kind::start) before = record.wall_time;
  }
  if (failures == 0) return html + "<p>None: the membership never changed.</p>\n";
  html +=
      "<table class=\"failures\"><thead><tr><th>when</th><th>rank</th><th>host</th><th>cause</th><th>what followed</th>"
      "<th>time lost</th></tr></thead>\n" +
      rows + "</table>\n";
  if (failures > kMost)
    html += "<p class=\"soft\">" + std::to_string(failures - kMost) + " more are in metrics.jsonl.</p>\n";
  std::stable_sort(chart.lines[0].points.begin(), chart.lines[0].points.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return html + svg_chart(chart);
}

std::string described(const MetricRecord& record) {
  if (record.kind == Kind::start)
    return record.generation > 1 ? "another process is rank 0"
           : record.step > 0     ? "the run went on from a checkpoint"
                                 : "";
  if (record.kind == Kind::end) return std::string("the run ") + end_word(record);
  return record.kind == Kind::event ? record.text : "";
}

std::string events_html(const RunHistory& run) {
  constexpr std::size_t kMost = 500;
  std::string rows;
  std::size_t events = 0;
  for (const auto& record : run.records) {
    const auto text = described(record);
    if (text.empty() || ++events > kMost) continue;
    rows += "<tr><td class=\"number\">" + duration_text(record.wall_time - begin_of(run)) + "</td><td>" +
            std::to_string(record.step) + "</td><td>" + html_escaped(text) + "</td></tr>\n";
  }
  if (rows.empty()) return {};
  return "<h2>Events</h2>\n<table><thead><tr><th>time</th><th>step</th><th>event</th></tr></thead>\n" + rows +
         "</table>\n" +
         (events > kMost ? "<p class=\"soft\">" + std::to_string(events - kMost) + " more are in metrics.jsonl.</p>\n"
                         : "");
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

// Student's t, 97.5 %, kParts - 1 degrees of freedom.
constexpr double kQuantile = 2.26;

// `spread`: half of the 95 % interval of the difference, where it is known.
std::string lower_loss(const RunHistory& run, double ours, const RunHistory& baseline, double theirs,
                       std::optional<double> spread) {
  const double by = std::abs(ours - theirs), most = std::max(ours, theirs);
  auto text = run.folder + " " + short_number(ours) + ", " + baseline.folder + " " + short_number(theirs) + "; ";
  if (by < 1e-4 * std::abs(most)) return text + "they are the same.";
  text += by < spread.value_or(0) ? "no clear difference, " : (ours < theirs ? run : baseline).folder + " is lower by ";
  text += short_number(by) + (most > 0 ? " (" + percent(by / most) + ")" : "");
  return text + (spread ? ", 95 % interval " + short_number(by - *spread) + " to " + short_number(by + *spread) : "") +
         ".";
}

std::string compare_speed(const RunHistory& run, const RunNumbers& a, const RunHistory& baseline, const RunNumbers& b) {
  const auto pace = [](const RunHistory& of, const RunNumbers& n) {
    return of.folder + " " + short_number(n.samples_per_second) + " samples/s with " + std::to_string(n.world_size) +
           (n.world_size == 1 ? " rank" : " ranks");
  };
  const double ratio = a.samples_per_second / b.samples_per_second;
  const double spread =
      std::exp(kQuantile * std::hypot(a.samples_error / a.samples_per_second, b.samples_error / b.samples_per_second));
  const bool sure = std::min(a.intervals, b.intervals) >= static_cast<std::int64_t>(kParts);
  return "Speed: " + pace(run, a) + ", " + pace(baseline, b) + "; " +
         (sure && ratio <= spread && 1 / ratio <= spread ? "no clear difference"
                                                         : (ratio < 1 ? baseline : run).folder + " is faster") +
         formatted(", %.2f times the baseline's pace", ratio) +
         (sure ? formatted(", 95 %% interval %.2f to %.2f.", ratio / spread, ratio * spread)
               : "; there are too few log intervals to say how sure this is.");
}

// Over the last steps that both have a log line of.
std::optional<std::string> compare_training(const RunHistory& run, const RunHistory& baseline) {
  const auto ours = series(run, Kind::train, "loss_metrics/global_avg_loss"),
             theirs = series(baseline, Kind::train, "loss_metrics/global_avg_loss");
  double a = 0, b = 0, squares = 0, last = 0;
  std::size_t n = 0;
  auto other = theirs.rbegin();
  for (auto mine = ours.rbegin(); mine != ours.rend() && n < kParts; ++mine) {
    while (other != theirs.rend() && other->first > mine->first) ++other;
    if (other == theirs.rend()) break;
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

std::vector<std::string> outcome_lines(const RunHistory& run, const RunNumbers& n) {
  const auto outcome = outcome_of(run);
  const auto losses = series(run, Kind::train, "loss_metrics/global_avg_loss");
  std::vector<std::string> lines{
      outcome.word + ": " + std::to_string(n.steps) + " steps in " + duration_text(n.wall_s) +
      (losses.empty() ? "" : "; last loss " + short_number(losses.back().second) + ", best " + best_of(losses)) +
      (n.membership_changes > 0 ? "; " + duration_text(n.stalled_s) + " lost to failures" : "")};
  if (!outcome.good) lines.insert(lines.end(), {"why: " + outcome.why, "next: " + outcome.next});
  return lines;
}

std::vector<std::string> comparison(const RunHistory& run, const RunHistory& baseline) {
  std::vector<std::string> lines;
  const auto a = numbers_of(run.records), b = numbers_of(baseline.records);
  if (a.samples_per_second > 0 && b.samples_per_second > 0) lines.push_back(compare_speed(run, a, baseline, b));
  const auto best = [](const RunHistory& of) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& point : series(of, Kind::validation, "validation_metrics/loss"))
      least = std::fmin(least, point.second);
    return least;
  };
  if (const double ours = best(run), theirs = best(baseline); std::isfinite(ours) && std::isfinite(theirs))
    lines.push_back("Best held-out loss: " + lower_loss(run, ours, baseline, theirs, std::nullopt));
  if (auto line = compare_training(run, baseline)) lines.push_back(std::move(*line));
  return lines;
}

std::string report_html(const RunHistory& run, const RunNumbers& numbers, const std::vector<Advice>& advice,
                        const RunHistory* baseline) {
  std::string compared;
  if (baseline != nullptr) {
    compared = "<h2>Compared with " + html_escaped(baseline->folder) + "</h2>\n";
    for (const auto& line : comparison(run, *baseline)) compared += "<p>" + html_escaped(line) + "</p>\n";
  }
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
         "<meta name=\"viewport\" content=\"width=device-width\"><title>Run " +
         html_escaped(run.folder) + "</title>\n<style>" + style() + "</style></head>\n<body><main>\n" +
         head(run, numbers) + compared + split_html(numbers) + failures_html(run) + advice_html(advice) +
         training_html(run, baseline) + own_html(run) + ranks_html(numbers) + queues_html(numbers) + trace_html(run) +
         events_html(run) + "</main></body></html>\n";
}

}  // namespace troupe
