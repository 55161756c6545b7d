#include "tensor_io/optimizer/loss_scaler.hpp"

#include <limits>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/golden.hpp"

using namespace troupe;

namespace {

LossScaler scaler(double init, double growth, double backoff, std::int64_t interval) {
  LossScalerOptions options;
  options.loss_scale_init = init;
  options.loss_scale_growth = growth;
  options.loss_scale_backoff = backoff;
  options.loss_scale_interval = interval;
  return LossScaler(options, true);
}

}  // namespace

TEST_CASE("[T01] the loss scale follows PyTorch's GradScaler through a recorded sequence, bit by bit") {
  const test::Golden golden("loss_scaler.txt");
  struct Case {
    const char* name;
    double init, growth, backoff;
    std::int64_t interval;
  };
  const auto one =
      GENERATE(Case{"defaults", 65536, 2, 0.5, 2000}, Case{"uneven", 1000, 1.7, 0.3, 3}, Case{"top", 1e38, 2, 0.5, 1});
  const std::string prefix = std::string("scaler.") + one.name;
  const auto overflowed = golden.doubles(prefix + ".overflowed");
  const auto scales = golden.doubles(prefix + ".scale"), trackers = golden.doubles(prefix + ".tracker");
  REQUIRE(overflowed.size() > 20);
  auto mine = scaler(one.init, one.growth, one.backoff, one.interval);
  for (std::size_t step = 0; step < overflowed.size(); ++step) {
    mine.update(overflowed[step] != 0);
    CHECK(mine.scale() == scales[step]);
    CHECK(static_cast<double>(mine.growth_tracker()) == trackers[step]);
  }
}

TEST_CASE("[T01] a loss scaler that is off leaves the loss as it is") {
  LossScaler off;
  off.update(true);
  CHECK(off.scale() == 1);
  CHECK_FALSE(off.exhausted());
}

TEST_CASE("[T01] a loss scale is restored, and one that can't be is refused") {
  auto mine = scaler(1024, 2, 0.5, 3);
  mine.load(2, 2);
  CHECK(mine.scale() == 2);
  mine.update(false);
  CHECK(mine.scale() == 4);
  mine.load(1, 0);
  CHECK_FALSE(mine.exhausted());
  mine.update(true);
  CHECK(mine.exhausted());
  for (const double scale :
       {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    CHECK_THROWS_AS(mine.load(scale, 0), Error);
  }
  CHECK_THROWS_WITH(mine.load(1, -1), Catch::Contains("-1 steps"));
}
