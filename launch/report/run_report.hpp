#pragma once
#include <string>
#include <vector>

#include "launch/observe/advice.hpp"
#include "launch/report/measured_run.hpp"
#include "launch/report/run_outcome.hpp"

namespace troupe {

/// What a report says, of which the page and the lines for a console are made. It refers to its runs.
struct RunReport {
  const MeasuredRun& run;
  const MeasuredRun* baseline = nullptr;  ///< another run, to compare with; may be null
  RunOutcome outcome;
  std::vector<std::string> comparison;  ///< empty without a baseline
  std::vector<Advice> advice;           ///< scaling is measured if the baseline has fewer ranks
};
/// Pure.
RunReport report_on(const MeasuredRun& run, const MeasuredRun* baseline = nullptr);

/// One HTML page, whole in itself: no script, no font, no address outside. It lists the gaps of the run's folder.
/// Pure: the same run gives the same bytes.
std::string report_html(const RunReport& report);
/// The same in lines for a console: outcome, comparison, gaps, advice. Pure.
std::vector<std::string> report_lines(const RunReport& report);

/// `troupe report [RUN [BASELINE]] [--out FILE] [--baseline RUN]`; `words` are those after `report`. Writes the page
/// and prints the lines. Returns the exit code. Throws Error(usage), Error(bad_data) for a folder that is no run's,
/// Error(io) if the page cannot be written.
int report_command(const std::vector<std::string>& words);

}  // namespace troupe
