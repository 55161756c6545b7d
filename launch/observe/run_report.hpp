#pragma once
#include <string>
#include <vector>

#include "launch/observe/advice.hpp"
#include "launch/observe/run_folder.hpp"

namespace troupe {

/// One HTML page about a run, whole in itself: no script, no font, no address outside. It lists the gaps of the run's
/// folder. `baseline`: another run, to compare with; may be null. Pure: the same run gives the same bytes.
std::string report_html(const RunHistory& run, const RunNumbers& numbers, const std::vector<Advice>& advice,
                        const RunHistory* baseline = nullptr);

/// How the run ended, in a line for the console; if not well, why and what to do next in two more. Pure.
std::vector<std::string> outcome_lines(const RunHistory& run, const RunNumbers& numbers);

/// Which of two runs is faster, and which has the lower loss, by how much: a line for each. Pure.
std::vector<std::string> comparison(const RunHistory& run, const RunHistory& baseline);

/// `troupe report [RUN] [--out FILE] [--baseline RUN]`; `words` are those after `report`. Writes the page and prints
/// the advice. Returns the exit code. Throws Error(usage), Error(bad_data) for a folder that is no run's, Error(io) if
/// the page cannot be written.
int report_command(const std::vector<std::string>& words);

}  // namespace troupe
