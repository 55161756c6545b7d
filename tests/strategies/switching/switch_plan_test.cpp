#include "strategies/switching/switch_plan.hpp"

#include "tests/catch.hpp"

using namespace troupe;

namespace {

std::string switches_fault(const std::string& text) {
  std::vector<StrategyPhase> phases;
  return parse_switches(text, phases);
}

}  // namespace

TEST_CASE("[X06] a plan of switches is steps and strategies, in order") {
  std::vector<StrategyPhase> phases;
  REQUIRE(parse_switches("200:ddp+bf16,400:diloco", phases).empty());
  REQUIRE(phases.size() == 2);
  CHECK(phases[0].from == 200);
  CHECK(phases[0].text() == "ddp+bf16");
  CHECK(phases[1].text() == "diloco");
  phases.insert(phases.begin(), StrategyPhase{0, "ddp", "none"});
  CHECK(phase_after(phases, 0).text() == "ddp");
  CHECK(phase_after(phases, 199).text() == "ddp");
  CHECK(phase_after(phases, 200).text() == "ddp+bf16");
  CHECK(phase_after(phases, 399).text() == "ddp+bf16");
  CHECK(phase_after(phases, 4000).text() == "diloco");
  CHECK(switches_fault("").empty());
}

TEST_CASE("[X06] what is no plan of switches is refused by its part") {
  for (const auto* text : {"ddp", "200", "200:", ":ddp", "x:ddp", "-5:ddp", "0:ddp", "5:ddp+", "5:+bf16", "5:ddp,",
                           ",5:ddp", "5 :ddp", "99999999999999999999:ddp"}) {
    INFO(text);
    CHECK_FALSE(switches_fault(text).empty());
  }
  CHECK_THAT(switches_fault("9:ddp,9:diloco"), Catch::Contains("step 9"));
  CHECK_THAT(switches_fault("9:fsdp"), Catch::Contains("shard"));
}
