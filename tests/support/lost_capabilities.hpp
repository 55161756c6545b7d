#pragma once
#include <string>
#include <typeinfo>

#include "actors/strategy/capabilities.hpp"

namespace troupe::testing {

/// What `inner` can do, and a strategy around it neither can nor refuses: names of types, each with a space behind it.
inline std::string lost_capabilities(const StrategyCapabilities& outer, const StrategyCapabilities& inner) {
  std::string lost;
  const auto look = [&]<class Capability>(const StrategyCapabilities::Entry<Capability>& within) {
    const auto& around = std::get<StrategyCapabilities::Entry<Capability>>(outer.entries());
    if (within.object != nullptr && around.object == nullptr && around.refused == nullptr)
      lost += std::string(typeid(Capability*).name()) + " ";
  };
  std::apply([&](const auto&... entry) { (look(entry), ...); }, inner.entries());
  return lost;
}

}  // namespace troupe::testing
