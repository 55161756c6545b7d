#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/step/vote.hpp"

namespace troupe {

/// Replicas that do not hold the same parameters although they should: a bit flipped in memory, a rank that changed its
/// weights on its own.
struct Divergence {
  std::vector<int> diverged;  ///< ranks, ascending
  std::vector<int> trusted;   ///< the others
  bool majority = false;      ///< the trusted are more than half of all

  std::string describe() const;  ///< `rank 2 holds different parameters from ranks 0, 1, 3`
};

/// The ranks that differ, by the hashes in the votes. The side that has more than half of the ranks is trusted; without
/// one, rank 0's. nullopt: all agree, or no hash was taken in this step. Pure.
std::optional<Divergence> find_divergence(std::span<const Vote> votes);

}  // namespace troupe
