#include "strategies/switching/switch_plan.hpp"

#include <random>

#include "tests/catch.hpp"

using namespace troupe;

namespace {

std::string switches_fault(const std::string& text) {
  std::vector<StrategyPhase> phases;
  return parse_switches(text, phases);
}

// What a job measures at a level: `compute` ms a step of its own, the wire that all gradients take, and how much of
// that it can hide.
LinkTimes times_at(LinkLevel level, double compute, double wire, double hidden) {
  if (level == LinkLevel::alone) return {compute, 0, wire};
  const double taken = level == LinkLevel::half ? wire / 2 : wire, exposed = std::max(0.0, taken - hidden);
  return {compute + exposed, exposed, taken};
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

TEST_CASE("[X06] less is sent on a slow link, level by level, and more again on a fast one") {
  auto level = LinkLevel::whole;
  std::vector<LinkLevel> seen;
  for (const double wire : {5.0, 5.0, 100.0, 100.0, 100.0, 100.0, 5.0, 5.0, 5.0}) {
    level = choose_level(level, times_at(level, 50, wire, 10)).level;
    seen.push_back(level);
  }
  using enum LinkLevel;
  CHECK((seen == std::vector<LinkLevel>{whole, whole, half, alone, alone, alone, half, whole, whole}));
  CHECK(choose_level(LinkLevel::whole, times_at(LinkLevel::whole, 50, 100, 0)).why ==
        "gradients were waited for in 67% of a step");
}

TEST_CASE("[X06] whatever the link, the level comes to rest, and noise of a tenth does not move it on") {
  std::mt19937 generator(3);
  std::uniform_real_distribution<double> scatter(0.9, 1.1);
  for (double wire = 1; wire < 400; wire *= 1.15) {
    for (const double hidden : {0.0, 20.0}) {
      auto level = LinkLevel::whole;
      int moves = 0;
      for (int look = 0; look < 200; ++look) {
        const auto next = choose_level(level, times_at(level, 50, wire * scatter(generator), hidden)).level;
        moves += next != level;
        level = next;
      }
      INFO(wire << " ms, " << hidden << " hidden");
      CHECK(moves <= 2);
    }
  }
}

TEST_CASE("[X06] a job that has measured nothing stays as it is") {
  CHECK(choose_level(LinkLevel::half, {}).level == LinkLevel::half);
}
