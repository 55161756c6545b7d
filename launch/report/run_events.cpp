#include "launch/report/run_events.hpp"

#include <algorithm>

#include "launch/observe/run_statistics.hpp"
#include "launch/observe/svg_chart.hpp"
#include "launch/report/run_outcome.hpp"

namespace troupe {
namespace {

double begin_of(const RunHistory& run) {
  for (const auto& record : run.records) {
    if (record.wall_time > 0) return record.wall_time;
  }
  return 0;
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

std::string described(const MetricRecord& record) {
  if (record.kind == MetricRecord::Kind::start)
    return record.generation > 1 ? "another process is rank 0"
           : record.step > 0     ? "the run went on from a checkpoint"
                                 : "";
  if (record.kind == MetricRecord::Kind::end) return std::string("the run ") + end_word(record);
  return record.kind == MetricRecord::Kind::event ? record.text : "";
}

}  // namespace

bool is_change(const MetricRecord& record) noexcept {
  return record.kind == MetricRecord::Kind::event && record.generation > 1;
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
    if (record.kind == MetricRecord::Kind::train)
      chart.lines[0].points.emplace_back(at, static_cast<double>(record.step));
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
    if (record.kind == MetricRecord::Kind::end && !record.text.empty()) {
      const auto rank = static_cast<std::size_t>(rank_in(record.text));
      ++failures;
      rows += failure_row(when, rank < members.size() ? Members{members[rank]} : Members(), record.text,
                          "the run ended", "");
    }
    if (record.generation > 0 && record.kind == MetricRecord::Kind::event) members = record.members;
    if (record.kind != MetricRecord::Kind::start) before = record.wall_time;
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

}  // namespace troupe
