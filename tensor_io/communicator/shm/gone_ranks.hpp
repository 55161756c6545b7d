#pragma once
#include <algorithm>
#include <vector>

namespace troupe {

/// Of the ranks in `missing()`, those that `is_gone(rank)`: they never come. A rank may come and then leave between the
/// two looks, so it is gone only if a look at `missing` after `is_gone` still has it.
template <class Missing, class IsGone>
std::vector<int> gone_ranks(const Missing& missing, const IsGone& is_gone) {
  std::vector<int> gone = missing();
  std::erase_if(gone, [&](int rank) { return !is_gone(rank); });
  if (gone.empty()) return gone;
  const std::vector<int> still = missing();
  std::erase_if(gone, [&](int rank) { return std::find(still.begin(), still.end(), rank) == still.end(); });
  return gone;
}

}  // namespace troupe
