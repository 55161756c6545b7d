#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace troupe {

/// The middle value; of an even number of values the higher of the two. 0 for none.
inline double upper_median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace troupe
