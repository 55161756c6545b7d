#include "tensor_io/base/nearest_name.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace troupe {

std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates, std::size_t most) {
  std::string best;
  if (name.size() > 200) return best;  // no typo, and it would take long
  std::size_t best_distance = std::min(most, std::max<std::size_t>(2, name.size() / 3)) + 1;
  for (const auto& candidate : candidates) {
    // Rows of the table of distances between beginnings: the one before the last, the last, this one.
    std::vector<std::size_t> earlier, last(candidate.size() + 1), row(candidate.size() + 1);
    std::iota(last.begin(), last.end(), std::size_t{0});
    for (std::size_t i = 1; i <= name.size(); ++i) {
      row[0] = i;
      for (std::size_t j = 1; j <= candidate.size(); ++j) {
        row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (name[i - 1] == candidate[j - 1] ? 0 : 1)});
        if (i > 1 && j > 1 && name[i - 1] == candidate[j - 2] && name[i - 2] == candidate[j - 1])
          row[j] = std::min(row[j], earlier[j - 2] + 1);
      }
      earlier = std::exchange(last, row);
    }
    if (last.back() < best_distance) best_distance = last.back(), best = candidate;
  }
  return best;
}

std::string remedy_for_name(const std::string& name, const std::vector<RegisteredName>& known) {
  std::vector<std::string> names;
  names.reserve(known.size());
  for (const auto& entry : known) names.push_back(entry.name);
  const auto near = nearest_name(name, names);
  return (near.empty() ? "" : "did you mean " + near + "? ") + "known: " + name_list(known);
}

}  // namespace troupe
