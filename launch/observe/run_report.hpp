#pragma once
#include <string>
#include <vector>

#include "launch/observe/advice.hpp"
#include "launch/observe/run_folder.hpp"

namespace troupe {

/// One HTML page about a run, whole in itself: no script, no font, no address outside. Says what the run's folder
/// lacks. Pure: the same run gives the same bytes.
std::string report_html(const RunHistory& run, const RunNumbers& numbers, const std::vector<Advice>& advice);

/// `troupe report [RUN] [--out FILE] [--baseline RUN]`; `words` is what follows `report`. Writes the page and prints
/// the advice. Returns the exit code. Throws Error(usage), Error(bad_data) for what is no run, Error(io) where the page
/// cannot be written.
int report_command(const std::vector<std::string>& words);

}  // namespace troupe
