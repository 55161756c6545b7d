#include "strategies/mesh/stage_cut.hpp"

#include <algorithm>
#include <utility>

#include "strategies/mesh/stage_balance.hpp"

namespace troupe {

StageCut::StageCut(std::vector<std::string> blocks, int ranks, int chunks)
    : blocks_(std::move(blocks)), ranks_(ranks), chunks_(chunks) {}

int StageCut::block_of(std::string_view name) const {
  const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                  [&](const std::string& block) { return name.starts_with(block + "."); });
  return found == blocks_.end() ? -1 : static_cast<int>(found - blocks_.begin());
}

void StageCut::cut_by(const std::vector<double>& costs) { cut_at(balance_stages(costs, stages())); }

int StageCut::stage_with(int block) const {
  return static_cast<int>(std::upper_bound(borders_.begin(), borders_.end(), block) - borders_.begin()) - 1;
}

std::string StageCut::describe() const {
  std::string text = "stages of ";
  if (!is_cut()) return text + "blocks to be measured";
  for (std::size_t s = 1; s < borders_.size(); ++s)
    text += (s > 1 ? "+" : "") + std::to_string(borders_[s] - borders_[s - 1]);
  return text + " blocks";
}

}  // namespace troupe
