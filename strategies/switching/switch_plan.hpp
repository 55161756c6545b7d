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

/// `200:ddp+bf16,400:diloco` (config: switch_at). Returns what is wrong with it, or an empty string.
std::string parse_switches(const std::string& text, std::vector<StrategyPhase>& phases);

/// Why a job can't be switched to this strategy, or from it, while it runs; empty: it can.
std::string unswitchable(const std::string& strategy);

/// The one that holds after `done` steps. `phases` are in order, and the first is from 0.
const StrategyPhase& phase_after(const std::vector<StrategyPhase>& phases, std::int64_t done);

/// What a job's steps were made of, over a window: the least of the ranks' medians, which is that of the rank for which
/// the others have waited. What the others waited for that rank is no fault of the link.
struct LinkTimes {
  double step_ms = 0;     ///< of a step; of one without outer step where replicas train alone
  double exposed_ms = 0;  ///< of it, for the reduced gradients
  double wire_ms = 0;     ///< all gradients (alone: all parameters, once) are in collectives for so long
};

/// How much traffic a job's strategy saves: the levels that `adapt = link` goes through.
enum class LinkLevel : std::uint8_t { whole, half, alone };  // ddp, ddp+bf16, diloco

struct LinkLimits {
  double high = 0.35;  ///< exposed share of a step from which less is to be sent
  double low = 0.15;   ///< the level above is for a link on which its exposed share would be below this
};

struct LinkChoice {
  LinkLevel level = LinkLevel::whole;
  std::string why;  ///< `gradients were waited for 58% of a step`
};

/// The level for the steps to come. One step down where what is exposed is more than `high`. One step up where the
/// level above would expose less than `low`, by an estimate that hides nothing more than now: bf16 saves half of the
/// wire's time, and a step of diloco hides none. Pure; between the two limits nothing changes.
LinkChoice choose_level(LinkLevel now, const LinkTimes& times, const LinkLimits& limits = {});

}  // namespace troupe
