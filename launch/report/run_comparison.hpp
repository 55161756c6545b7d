#pragma once
#include <string>
#include <vector>

#include "launch/report/measured_run.hpp"

namespace troupe {

/// Which of two runs is faster, and which has the lower loss, by how much: a line for each. Pure.
std::vector<std::string> comparison(const MeasuredRun& run, const MeasuredRun& baseline);

}  // namespace troupe
