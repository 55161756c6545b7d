#pragma once
#include <cstddef>
#include <map>
#include <vector>

namespace troupe {

/// The indices of those whose value differs from the most common one; the first one's side wins a tie. At least one.
template <class Range, class Value>
std::vector<int> minority(const Range& all, Value value) {
  std::map<decltype(value(all[0])), int> count;
  for (const auto& one : all) ++count[value(one)];
  auto best = value(all[0]);
  for (const auto& [candidate, n] : count) {
    if (n > count[best]) best = candidate;
  }
  std::vector<int> odd;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (value(all[i]) != best) odd.push_back(static_cast<int>(i));
  }
  return odd;
}

}  // namespace troupe
