#include "actors/stragglers/straggler.hpp"

#include <cmath>
#include <random>

#include "tests/catch.hpp"

using namespace troupe;

namespace {

// Steps as ranks that share cores have them: most near their mean, a tail to the right, now and then a pause, a drift
// that all share and a slow wave of each rank's own (what else its host does).
class Noise {
 public:
  Noise(int ranks, unsigned seed, double wave = 0.08) : ranks_(ranks), generator_(seed), wave_(wave) {}
  std::vector<SectionTimes> step(double mean_ms = 20) {
    std::lognormal_distribution<double> scatter(0.0, 0.12);
    std::uniform_real_distribution<double> chance;
    ++step_;
    const double drift = 1 + 0.2 * std::sin(step_ / 300.0);
    std::vector<SectionTimes> times;
    for (int r = 0; r < ranks_; ++r) {
      const double wave = 1 + wave_ * std::sin(step_ / (40.0 + 17 * r) + r);
      SectionTimes own;
      own.data_ms =
          static_cast<float>(0.02 * mean_ms * scatter(generator_) + (chance(generator_) < 0.005 ? 0.7 * mean_ms : 0));
      own.forward_ms = static_cast<float>(0.33 * mean_ms * drift * wave * scatter(generator_));
      own.backward_ms = static_cast<float>(0.65 * mean_ms * drift * wave * scatter(generator_) +
                                           (chance(generator_) < 0.01 ? 2 * mean_ms : 0));
      times.push_back(own);
    }
    return times;
  }

 private:
  int ranks_;
  std::mt19937 generator_;
  double wave_;  // how much a rank differs from the others at times
  double step_ = 0;
};

}  // namespace

TEST_CASE("[L05] fault 32: of 10,000 steps that merely scatter none has a slow rank") {
  const int ranks = GENERATE(2, 3, 4, 16);
  const unsigned seed = GENERATE(1u, 2u, 3u);
  Noise noise(ranks, seed);
  StragglerWatch watch;
  int flagged = 0;
  for (int s = 0; s < 10'000; ++s) flagged += watch.add(noise.step()) ? 1 : 0;
  CHECK(flagged == 0);
}

TEST_CASE(
    "[L05] fault 32: a rank that takes 1.5 times as long is flagged within 20 steps, with its section, among two ranks "
    "too") {
  const int ranks = GENERATE(2, 3, 4, 16);
  const unsigned seed = GENERATE(range(10u, 20u));
  Noise noise(ranks, seed, 0.03);
  StragglerWatch watch;
  for (int s = 0; s < 100; ++s) REQUIRE_FALSE(watch.add(noise.step()));
  int steps = 0;
  while (watch.slow().empty() && steps < 100) {
    auto times = noise.step();
    times[1].forward_ms += 0.5f * times[1].total_ms();
    watch.add(times);
    ++steps;
  }
  CHECK(steps <= 20);
  REQUIRE(watch.slow().size() == 1);
  CHECK(watch.slow()[0].rank == 1);
  CHECK(watch.slow()[0].section == "forward");
  CHECK(watch.slow()[0].ratio > 1.3);
  CHECK_THAT(watch.slow()[0].describe(), Catch::Contains("rank 1 is slow") && Catch::Contains("forward"));
}

TEST_CASE("[L05] a slow rank is news once, and again when it keeps up") {
  Noise noise(4, 5);
  StragglerWatch watch;
  int news = 0;
  for (int s = 0; s < 100; ++s) {
    auto times = noise.step();
    if (s >= 40) times[3].backward_ms *= 3;
    news += watch.add(times) ? 1 : 0;
  }
  CHECK(news == 1);
  CHECK(watch.slow().size() == 1);
  for (int s = 0; s < 40; ++s) news += watch.add(noise.step()) ? 1 : 0;
  CHECK(news == 2);
  CHECK(watch.slow().empty());
}

TEST_CASE("[L05] in a very small model differences below a millisecond are nobody's concern") {
  StragglerWatch watch;
  std::vector<SectionTimes> times(2, SectionTimes{0, 0.1f, 0.1f});
  times[1].forward_ms = 0.9f;
  for (int s = 0; s < 100; ++s) CHECK_FALSE(watch.add(times));
  times[1].forward_ms = 2.0f;
  for (int s = 0; s < 20; ++s) watch.add(times);
  CHECK(watch.slow().size() == 1);
}

TEST_CASE("[L05] another number of ranks begins the watch anew") {
  StragglerWatch watch;
  const std::vector<SectionTimes> four{{0, 10, 0}, {0, 10, 0}, {0, 10, 0}, {0, 40, 0}};
  for (int s = 0; s < 20; ++s) watch.add(four);
  REQUIRE(watch.slow().size() == 1);
  CHECK_FALSE(watch.add(std::vector<SectionTimes>(3, SectionTimes{0, 10, 0})));
  CHECK(watch.slow().empty());
}
