#pragma once
#include <string>
#include <vector>

#include "launch/observe/advice.hpp"
#include "launch/observe/run_folder.hpp"

namespace troupe {

/// One HTML page about a run, whole in itself: no script, no font, no address outside. It lists the gaps of the run's
/// folder. Pure: the same run gives the same bytes.
std::string report_html(const RunHistory& run, const RunNumbers& numbers, const std::vector<Advice>& advice);

/// `troupe report [RUN] [--out FILE] [--baseline RUN]`; `words` are those after `report`. Writes the page and prints
/// the advice. Returns the exit code. Throws Error(usage), Error(bad_data) for a folder that is no run's, Error(io) if
/// the page cannot be written.
int report_command(const std::vector<std::string>& words);

}  // namespace troupe
