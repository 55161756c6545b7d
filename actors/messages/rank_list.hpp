#pragma once
#include <span>
#include <string>

namespace troupe {

/// `rank 2`, `ranks 0, 1, 3`.
inline std::string rank_list(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace troupe
