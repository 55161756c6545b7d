#include "actors/strategy/capabilities.hpp"

#include "actors/strategy/demand_shares.hpp"
#include "actors/strategy/device_memory.hpp"
#include "actors/strategy/early_updates.hpp"
#include "actors/strategy/evaluation.hpp"
#include "actors/strategy/graph_capture.hpp"
#include "actors/strategy/handover.hpp"
#include "actors/strategy/late_voting.hpp"
#include "actors/strategy/meetings.hpp"
#include "actors/strategy/micro_batch_order.hpp"
#include "actors/strategy/own_figures.hpp"
#include "actors/strategy/peer_waits.hpp"
#include "actors/strategy/placement.hpp"
#include "actors/strategy/saved_state.hpp"
#include "actors/strategy/snapshots.hpp"
#include "actors/strategy/strategy.hpp"

namespace troupe {

StrategyCapabilities StrategyCapabilities::of(Strategy& strategy) {
  StrategyCapabilities found;
  std::apply([&]<class... Capability>(
                 Entry<Capability>&... entry) { ((entry.object = dynamic_cast<Capability*>(&strategy)), ...); },
             found.entries_);
  return found;
}

StrategyCapabilities StrategyCapabilities::over(const StrategyCapabilities& inner) const {
  auto both = *this;
  std::apply(
      [&]<class... Capability>(Entry<Capability>&... entry) {
        ((entry = entry.object != nullptr || entry.refused != nullptr ? entry
                                                                      : std::get<Entry<Capability>>(inner.entries_)),
         ...);
      },
      both.entries_);
  return both;
}

}  // namespace troupe
