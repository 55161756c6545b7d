#include "launch/report/run_outcome.hpp"

#include <cstdio>

#include "launch/observe/svg_chart.hpp"
#include "launch/process/formatted.hpp"

namespace troupe {

int rank_in(const std::string& failure) {
  const auto at = failure.rfind("rank ");
  int rank = -1;
  return at != std::string::npos && std::sscanf(failure.c_str() + at, "rank %6d", &rank) == 1 ? rank : -1;
}

RunOutcome outcome_of(const RunHistory& run) {
  const auto& last = run.records.back();
  const auto& code = run.facts.exit_code;
  const std::string resume = "The same command with --resume latest goes on from the last checkpoint, if there is one.";
  if (last.kind != MetricRecord::Kind::end && code.empty())
    return {"not finished", "It is still running, or it was killed: the records have no end.",
            "troupe ps lists the jobs that run. " + resume};
  const std::string word = last.kind == MetricRecord::Kind::end ? end_word(last) : "failed";
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

std::vector<std::string> outcome_lines(const RunOutcome& outcome, const MeasuredRun& run) {
  const auto& n = run.numbers;
  std::string line = outcome.word + ": " + std::to_string(n.steps) + " steps in " + duration_text(n.wall_s);
  if (!run.loss.empty()) {
    const auto best = lowest(run.loss);
    line += "; last loss " + short_number(run.loss.back().second) + ", best " + short_number(best.second) +
            " at step " + formatted("%.0f", best.first);
  }
  if (n.membership_changes > 0) line += "; " + duration_text(n.stalled_s) + " lost to failures";
  std::vector<std::string> lines{line};
  if (!outcome.good) lines.insert(lines.end(), {"why: " + outcome.why, "next: " + outcome.next});
  return lines;
}

}  // namespace troupe
