#include "tensor_io/optimizer/schedule.hpp"

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/golden.hpp"

using namespace troupe;

namespace {

OptimizerOptions options(const std::string& schedule, std::int64_t warmup = 0) {
  OptimizerOptions options;
  options.lr = 0.1;
  options.schedule = schedule;
  options.warmup_steps = warmup;
  options.lr_min = schedule == "cosine" ? 0.001 : 0;
  options.lr_step_epochs = 3;
  return options;
}

}  // namespace

TEST_CASE("[T02] schedules give PyTorch's rates") {
  const test::Golden golden("training.txt");
  // One step per epoch, so that epochs count in `step`.
  const auto [name, chosen, total] = GENERATE(table<std::string, OptimizerOptions, std::int64_t>({
      {"schedule.cosine", options("cosine"), 20},
      {"schedule.warmup_cosine", options("cosine", 5), 20},
      {"schedule.step", options("step"), 12},
      {"schedule.warmup", options("constant", 5), 10},
  }));
  const auto rates = golden.doubles(name);
  for (std::size_t step = 0; step < rates.size(); ++step) {
    INFO(name << " at step " << step);
    CHECK(scheduled_lr(chosen, static_cast<std::int64_t>(step), 1, total) == Approx(rates[step]).epsilon(1e-12));
  }
}

TEST_CASE("[T02] the step schedule counts epochs, not steps") {
  CHECK(scheduled_lr(options("step"), 29, 10, 100) == Approx(0.1));
  CHECK(scheduled_lr(options("step"), 30, 10, 100) == Approx(0.01));
  CHECK(scheduled_lr(options("step"), 60, 10, 100) == Approx(0.001));
}

TEST_CASE("a schedule has a rate for every step, also where the lengths make no sense") {
  CHECK(scheduled_lr(options("cosine"), 1000, 10, 20) == Approx(0.001));            // past the end
  CHECK(scheduled_lr(options("cosine", 50), 10, 10, 20) == Approx(0.1 * 11 / 51));  // ends within the warm-up
  CHECK(scheduled_lr(options("cosine", 50), 60, 10, 20) == Approx(0.001));
  CHECK(scheduled_lr(options("step"), 5, 0, 0) > 0);
  CHECK(scheduled_lr(options("constant", 1), 0, 1, 1) == Approx(0.05));
}

TEST_CASE("an unknown schedule is named with the known ones") {
  CHECK_THROWS_WITH(scheduled_lr(options("cosin"), 0, 1, 1),
                    Catch::Contains("cosin") && Catch::Contains("constant, cosine, step"));
}
