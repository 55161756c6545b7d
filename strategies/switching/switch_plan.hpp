#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// A strategy and its communication hook, from a step on.
struct StrategyPhase {
  std::int64_t from = 0;  ///< steps done before it
  std::string strategy;
  std::string hook = "none";

  std::string text() const { return hook == "none" ? strategy : strategy + "+" + hook; }  ///< `ddp+bf16`
  bool same_as(const StrategyPhase& other) const { return strategy == other.strategy && hook == other.hook; }
};

/// `200:ddp+bf16,400:diloco` (config: switch_at). Returns the mistake in it, or an empty string.
std::string parse_switches(const std::string& text, std::vector<StrategyPhase>& phases);

/// Why a job can't be switched to this strategy, or from it, while it runs; empty: it can.
std::string unswitchable(const std::string& strategy);

/// The one that holds after `done` steps. `phases` are in order, and the first is from 0.
const StrategyPhase& phase_after(const std::vector<StrategyPhase>& phases, std::int64_t done);

}  // namespace troupe
