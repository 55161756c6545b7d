#include "actors/stragglers/batch_split.hpp"

#include <numeric>
#include <random>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

using Shares = std::vector<std::int64_t>;

double done_last(const Shares& shares, const std::vector<double>& speeds) {
  double last = 0;
  for (std::size_t r = 0; r < shares.size(); ++r) last = std::max(last, static_cast<double>(shares[r]) / speeds[r]);
  return last;
}

std::string balance_fault(const std::string& text) {
  Balance balance;
  return Balance::parse(text, balance);
}

// Steps of ranks with these speeds (samples per ms) and a fixed cost of each step. Returns how often the shares
// changed.
int run_steps(BatchSplit& shares, const std::vector<double>& speeds, double fixed_ms, double noise, int steps) {
  std::mt19937 generator(5);
  std::lognormal_distribution<double> scatter(0.0, noise);
  int changes = 0;
  for (int s = 0; s < steps; ++s) {
    std::vector<double> took;
    for (std::size_t r = 0; r < speeds.size(); ++r) {
      const auto share = static_cast<double>(shares.by_rank()[r]);
      took.push_back((fixed_ms + share / speeds[r]) * (noise > 0 ? scatter(generator) : 1) +
                     (s % 11 == 3 ? 500 : 0));  // and a pause
    }
    changes += shares.add(took) ? 1 : 0;
  }
  return changes;
}

}  // namespace

TEST_CASE("[X06] shares add up to the batch, and follow the ranks' speeds") {
  CHECK((share_out(std::vector<double>{1, 1}, 64) == Shares{32, 32}));
  CHECK((share_out(std::vector<double>{3, 1}, 64) == Shares{48, 16}));
  CHECK((share_out(std::vector<double>{1, 2, 5}, 16) == Shares{2, 4, 10}));
  CHECK((share_out(std::vector<double>{1, 1, 1}, 16) == Shares{6, 5, 5}));
  CHECK((share_out(std::vector<double>{1000, 1e-6}, 8) == Shares{7, 1}));
  CHECK((share_out(std::vector<double>{1, 1e-9, 1e-9}, 3) == Shares{1, 1, 1}));
  CHECK_THROWS_WITH(share_out(std::vector<double>{1, 1, 1}, 2), Catch::Contains("too small for 3 ranks"));
}

TEST_CASE("[X06] no other shares would let the slowest rank be done earlier") {
  std::mt19937 generator(9);
  std::uniform_real_distribution<double> speed(0.2, 3);
  for (int trial = 0; trial < 40; ++trial) {
    const std::vector<double> speeds{speed(generator), speed(generator), speed(generator)};
    const std::int64_t total = 3 + trial;
    const auto shares = share_out(speeds, total);
    CHECK((std::accumulate(shares.begin(), shares.end(), std::int64_t{0}) == total));
    double best = 1e9;
    for (std::int64_t a = 1; a < total - 1; ++a) {
      for (std::int64_t b = 1; a + b < total; ++b) best = std::min(best, done_last({a, b, total - a - b}, speeds));
    }
    CHECK(done_last(shares, speeds) == Approx(best));
  }
}

TEST_CASE(
    "[X06] a rank that is three times as slow gets a third of the others' samples, after a window or two, and then no "
    "more change") {
  Balance balance;
  balance.by = Balance::By::speed;
  const auto fixed_ms = GENERATE(0.0, 5.0);
  BatchSplit shares(balance, 64, 2);
  CHECK((shares.by_rank() == Shares{32, 32}));
  const auto changes = run_steps(shares, {3, 1}, fixed_ms, 0, 200);
  if (fixed_ms == 0) CHECK((shares.by_rank() == Shares{48, 16}));
  CHECK(shares.by_rank()[0] >= 46);  // one sample less, and the step is as long
  CHECK(shares.by_rank()[0] <= 48);
  CHECK(changes >= 1);
  CHECK(changes <= 3);
  CHECK_THAT(shares.describe(), Catch::Contains("shares of the batch are now 4"));
}

TEST_CASE("[X06] noise of equal ranks moves no share") {
  Balance balance;
  balance.by = Balance::By::speed;
  BatchSplit shares(balance, 64, 4);
  CHECK(run_steps(shares, {1, 1.01, 0.99, 1}, 2, 0.05, 2000) == 0);
}

TEST_CASE("[X06] all ranks that see the same votes have the same shares, and a new membership begins with equal ones") {
  Balance balance;
  balance.by = Balance::By::speed;
  BatchSplit one(balance, 60, 3), other(balance, 60, 3);
  run_steps(one, {1, 2, 3}, 1, 0.2, 300);
  run_steps(other, {1, 2, 3}, 1, 0.2, 300);
  CHECK((one.by_rank() == other.by_rank()));
  CHECK((one.by_rank() != Shares{20, 20, 20}));
  one.reset(2);
  CHECK((one.by_rank() == Shares{30, 30}));
}

TEST_CASE("[X06] weights are fixed shares, which a membership of another number of ranks does without") {
  Balance balance;
  REQUIRE(Balance::parse("2,1,1", balance).empty());
  BatchSplit shares(balance, 16, 3);
  CHECK((shares.by_rank() == Shares{8, 4, 4}));
  CHECK_FALSE(shares.add(std::vector<double>{1, 50, 50}));
  shares.reset(2);
  CHECK((shares.by_rank() == Shares{8, 8}));
  shares.reset(3);
  CHECK((shares.by_rank() == Shares{8, 4, 4}));
  CHECK_THROWS_WITH(balance.check(2), Catch::Contains("3 weights") && Catch::Contains("2 ranks"));
}

TEST_CASE("[X06] what is no balance is refused by its part") {
  CHECK(balance_fault("equal").empty());
  CHECK(balance_fault("speed").empty());
  CHECK(balance_fault("1,2.5,3").empty());
  CHECK_THAT(balance_fault("fast"), Catch::Contains("'fast' is not a rank's weight"));
  for (const auto* text : {"", "1,", "1,,2", "0,1", "-1,2", "nan,1", "1;2", "1,1e99"}) {
    INFO(text);
    CHECK_FALSE(balance_fault(text).empty());
  }
}
