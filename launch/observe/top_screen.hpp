#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "actors/metrics/metric.hpp"

namespace troupe {

/// The content of the live page, as lines for a terminal of this size: ASCII, no line longer. `now`: seconds since
/// 1970. Pure.
std::string top_screen(const std::string& folder, const std::vector<MetricRecord>& records, std::size_t columns,
                       std::size_t rows, double now);

/// The levels of `values`, the last `width` of them, as characters from low to high; a blank for NaN or infinity.
std::string spark_line(const std::vector<double>& values, std::size_t width);

}  // namespace troupe
