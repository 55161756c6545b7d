#include "strategies/mesh/stage_balance.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"

namespace troupe {

std::vector<int> balance_stages(const std::vector<double>& costs, int stages) {
  const int blocks = static_cast<int>(costs.size());
  if (stages < 1 || stages > blocks) {
    throw Error(
        ErrorCode::usage, "pipeline",
        "a model of " + std::to_string(blocks) + " blocks can't be cut into " + std::to_string(stages) + " stages",
        "use fewer stages (mesh pp, pipeline_chunks), or make more of the model's modules blocks (TROUPE_BLOCK)");
  }
  std::vector<double> sums(costs.size() + 1, 0);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (!(costs[i] >= 0) || !std::isfinite(costs[i]))
      throw Error(ErrorCode::usage, "pipeline_costs", "a cost must be a number of at least 0");
    sums[i + 1] = sums[i] + costs[i];
  }
  struct Best {
    double most = std::numeric_limits<double>::infinity(), squares = 0;
    int from = 0;
    bool operator<(const Best& other) const {
      return most < other.most || (most == other.most && squares < other.squares);
    }
  };
  // best[s][b]: the first b blocks in s stages. Two passes: the least maximum over all first, since a prefix that is
  // better by squares alone must not hide one that the whole needs; then squares under that bound.
  double bound = std::numeric_limits<double>::infinity();
  std::vector<std::vector<Best>> best;
  for (int pass = 0; pass < 2; ++pass) {
    best.assign(static_cast<std::size_t>(stages) + 1, std::vector<Best>(costs.size() + 1));
    best[0][0] = {0, 0, 0};
    for (std::size_t s = 1; s < best.size(); ++s) {
      for (std::size_t b = s; b <= costs.size(); ++b) {
        for (std::size_t a = s - 1; a < b; ++a) {
          const double cost = sums[b] - sums[a];
          const auto& before = best[s - 1][a];
          if (cost > bound || !std::isfinite(before.most)) continue;
          Best candidate{pass == 0 ? std::max(before.most, cost) : 0, pass == 0 ? 0 : before.squares + cost * cost,
                         static_cast<int>(a)};
          if (candidate < best[s][b]) best[s][b] = candidate;
        }
      }
    }
    if (pass == 0) bound = best.back().back().most;
  }
  std::vector<int> borders(static_cast<std::size_t>(stages) + 1, blocks);
  for (auto s = static_cast<std::size_t>(stages); s > 0; --s)
    borders[s - 1] = best[s][static_cast<std::size_t>(borders[s])].from;
  return borders;
}

std::vector<double> parse_costs(std::string_view text, std::size_t blocks) {
  std::vector<double> costs;
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    const auto item = text.substr(0, comma);
    const auto cost = number_of<double>(item);
    if (!cost || !(*cost >= 0) || !std::isfinite(*cost))
      throw Error(ErrorCode::usage, "pipeline_costs",
                  "'" + std::string(item) + "' is neither parameters nor measured nor a cost of at least 0");
    costs.push_back(*cost);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
  }
  if (costs.size() != blocks) {
    throw Error(
        ErrorCode::usage, "pipeline_costs",
        "it has " + std::to_string(costs.size()) + " costs, and the model has " + std::to_string(blocks) + " blocks");
  }
  return costs;
}

}  // namespace troupe
