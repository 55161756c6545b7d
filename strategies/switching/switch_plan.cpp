#include "strategies/switching/switch_plan.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "tensor_io/base/number_of.hpp"

namespace troupe {

std::string unswitchable(const std::string& strategy) {
  if (strategy == "ddp" || strategy == "local_sgd" || strategy == "diloco") return {};
  if (strategy == "fsdp" || strategy == "zero1" || strategy == "zero2")
    return strategy + " keeps a shard of the state on each rank: save, and resume with another strategy";
  if (strategy == "pipeline" || strategy == "tensor_parallel")
    return strategy + " keeps a part of the model on each rank: save, and resume with another strategy";
  return "a running job is switched between ddp, local_sgd and diloco only, not to or from '" + strategy + "'";
}

std::string parse_switches(const std::string& text, std::vector<StrategyPhase>& phases) {
  phases.clear();
  if (text.empty()) return {};
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const auto colon = item.find(':');
    StrategyPhase phase;
    phase.from = number_of<std::int64_t>(std::string_view(item).substr(0, colon)).value_or(0);
    if (colon == std::string::npos || phase.from < 1) return "'" + item + "' is not STEP:STRATEGY, as in 200:ddp+bf16";
    if (!phases.empty() && phase.from <= phases.back().from)
      return "step " + std::to_string(phase.from) + " does not come after the one before";
    const auto name = item.substr(colon + 1);
    const auto plus = name.find('+');
    phase.strategy = name.substr(0, plus);
    if (plus != std::string::npos) phase.hook = name.substr(plus + 1);
    if (phase.strategy.empty() || phase.hook.empty()) return "'" + item + "' is not STEP:STRATEGY, as in 200:ddp+bf16";
    if (auto reason = unswitchable(phase.strategy); !reason.empty()) return reason;
    phases.push_back(std::move(phase));
  }
  return text.ends_with(",") ? "a step and its strategy are missing after the last comma" : "";
}

const StrategyPhase& phase_after(const std::vector<StrategyPhase>& phases, std::int64_t done) {
  const auto later =
      std::find_if(phases.begin() + 1, phases.end(), [&](const StrategyPhase& phase) { return phase.from > done; });
  return *(later - 1);
}

}  // namespace troupe
