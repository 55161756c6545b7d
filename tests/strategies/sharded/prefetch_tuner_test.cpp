#include "strategies/sharded/prefetch_tuner.hpp"

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/catch.hpp"

using namespace troupe;

namespace {

// The depths of so many decisions, where a step of 100 ms waits that long at a depth.
std::vector<std::int64_t> depths_of(PrefetchTuner tuner, int decisions,
                                    const std::function<double(std::int64_t)>& waited) {
  std::vector<std::int64_t> depths;
  for (int d = 0; d < decisions; ++d) {
    while (!tuner.add({waited(tuner.depth()), 100})) {
    }
    depths.push_back(tuner.decide(tuner.measured()));
  }
  return depths;
}

}  // namespace

TEST_CASE("[X06] units are gathered further ahead as long as the waits become shorter") {
  const auto halves = [](std::int64_t depth) { return depth < 8 ? 40.0 / static_cast<double>(depth) : 5.0; };
  CHECK((depths_of({1, 32}, 6, halves) ==
         std::vector<std::int64_t>{2, 4, 8, 16, 8, 16}));  // 16 won nothing; tried again after a rest
  CHECK((depths_of({1, 6}, 4, halves) == std::vector<std::int64_t>{2, 4, 6, 6}));
  CHECK((depths_of({0, 6}, 2, [](std::int64_t depth) { return depth == 0 ? 50.0 : 1.0; }) ==
         std::vector<std::int64_t>{1, 1}));
}

TEST_CASE("[X06] where gathers are not waited for, or a depth wins nothing, the depth stays") {
  CHECK((depths_of({3, 32}, 3, [](std::int64_t) { return 1.9; }) == std::vector<std::int64_t>{3, 3, 3}));
  CHECK((depths_of({3, 32}, 4, [](std::int64_t) { return 50.0; }) == std::vector<std::int64_t>{6, 3, 6, 3}));
}

TEST_CASE("[X06] the tuner takes medians of 20 steps, and rests for 500 once it decided to stay") {
  PrefetchTuner tuner(1, 8);
  for (int step = 0; step < PrefetchTuner::kSteps - 1; ++step) CHECK(!tuner.add({step < 5 ? 1000.0 : 1.0, 100}));
  CHECK(tuner.add({1, 100}));
  CHECK((tuner.measured().waited == 1 && tuner.measured().step == 100));
  CHECK(tuner.decide(tuner.measured()) == 1);
  int rested = 0;
  while (!tuner.add({1, 100})) ++rested;
  CHECK((rested == PrefetchTuner::kEvery + PrefetchTuner::kSteps - 1));
  CHECK(tuner.decisions() == 1);
}
