#include "actors/step/divergence.hpp"

#include <map>

#include "actors/messages/rank_list.hpp"

namespace troupe {

std::string Divergence::describe() const {
  return rank_list(diverged) + (diverged.size() == 1 ? " holds" : " hold") + " different parameters from " +
         rank_list(trusted);
}

std::optional<Divergence> find_divergence(std::span<const Vote> votes) {
  std::map<std::uint64_t, std::size_t> count;
  for (const auto& vote : votes) ++count[vote.parameter_hash];
  if (count.size() <= 1) return std::nullopt;
  Divergence found;
  auto right = votes[0].parameter_hash;
  for (const auto& [hash, n] : count) {
    if (2 * n > votes.size()) right = hash, found.majority = true;
  }
  for (std::size_t r = 0; r < votes.size(); ++r)
    (votes[r].parameter_hash == right ? found.trusted : found.diverged).push_back(static_cast<int>(r));
  return found;
}

}  // namespace troupe
