#include "actors/strategy/capabilities.hpp"

#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE("[D16] a capability that a strategy lacks is refused with its own words, or else with the caller's") {
  StrategyCapabilities none;
  CHECK(none.get<LateVoting>() == nullptr);
  CHECK(none.refusal<LateVoting>("it has none") == std::string("it has none"));
  none.refuse<LateVoting>("its votes come first");
  CHECK(none.refusal<LateVoting>("it has none") == std::string("its votes come first"));
  CHECK(none.refusal<GraphCapture>("nor this") == std::string("nor this"));
}
