#include "tensor_io/layout/bucket_tuning.hpp"

#include <limits>
#include <numeric>

#include "tests/catch.hpp"

using namespace troupe;

namespace {

constexpr std::int64_t kTunedMiB = 1 << 20;

// Layers of 1 MiB each, whose gradients come one after the other, the last layer's first.
struct TunedModel {
  std::vector<ParameterLayout> layout;
  std::vector<std::int32_t> order;
  std::vector<double> ready_ms;
  TunedModel(int layers, double ms_each) {
    for (int i = 0; i < layers; ++i) {
      layout.push_back({"layer" + std::to_string(i), {kTunedMiB / 4}, at::kFloat, true});
      order.push_back(layers - 1 - i);
      ready_ms.push_back(ms_each * (layers - i));
    }
  }
  BucketChoice choose(const WireCost& cost, const BucketCaps& now) const {
    return choose_caps(layout, order, ready_ms, cost, now);
  }
  double end(const BucketCaps& caps, const WireCost& cost) const {
    return predict_reduced(plan_buckets(layout, order, caps.cap_bytes, caps.first_cap_bytes), ready_ms, cost);
  }
};

}  // namespace

TEST_CASE("[X06] latency and bandwidth are told apart by collectives of unequal length") {
  const std::vector<WireSample> samples{{kTunedMiB, 0.5 + 2}, {25 * kTunedMiB, 0.5 + 50}, {8 * kTunedMiB, 0.5 + 16}};
  const auto cost = fit_wire_cost(samples);
  REQUIRE(cost);
  CHECK(cost->fixed_ms == Approx(0.5));
  CHECK(cost->ms_per_mib == Approx(2));
  CHECK(cost->of(4 * kTunedMiB) == Approx(8.5));
  CHECK_FALSE(fit_wire_cost(std::vector<WireSample>{{kTunedMiB, 1}}));
  CHECK_FALSE(fit_wire_cost(std::vector<WireSample>{{kTunedMiB, 1}, {kTunedMiB + 4096, 1.1}}));
  CHECK_FALSE(fit_wire_cost(std::vector<WireSample>{{kTunedMiB, 2}, {9 * kTunedMiB, 1}}));
  CHECK(fit_wire_cost(std::vector<WireSample>{{kTunedMiB, 1}, {9 * kTunedMiB, 10}})->fixed_ms == 0);
}

TEST_CASE("[X06] the predicted end is that of buckets that go out one after the other, each when it is full") {
  const TunedModel model(4, 10);  // ready at 10, 20, 30, 40 in the order of the plan
  const WireCost cost{1, 5};
  CHECK(model.end({kTunedMiB, kTunedMiB}, cost) == Approx(46));  // each hidden behind the next layer, the last is not
  CHECK(model.end({4 * kTunedMiB, 4 * kTunedMiB}, cost) == Approx(61));  // one bucket of 4 MiB, after all
  CHECK(model.end({kTunedMiB, kTunedMiB}, {1, 20}) == Approx(10 + 4 * 21));
  auto unused = model;
  unused.ready_ms[0] = std::numeric_limits<double>::quiet_NaN();
  CHECK(predict_reduced(plan_buckets(unused.layout, unused.order, kTunedMiB, kTunedMiB), unused.ready_ms, cost) ==
        Approx(36 + 6));
}

TEST_CASE(
    "[X06] a slow start of each collective asks for few buckets, a wire that hides behind backward for small ones") {
  const TunedModel model(16, 1);
  const auto few = model.choose({20, 0.01}, {kTunedMiB, kTunedMiB}),
             small = model.choose({0.001, 0.9}, {32 * kTunedMiB, 32 * kTunedMiB});
  CHECK(few.caps.cap_bytes >= 8 * kTunedMiB);
  CHECK(few.then_ms < few.now_ms);
  CHECK(small.caps.cap_bytes == kTunedMiB);
  CHECK(small.then_ms < small.now_ms);
  CHECK(few.then_ms == Approx(model.end(few.caps, {20, 0.01})));
}

TEST_CASE("[X06] no power of two has a better end than the choice, and what is good enough stays") {
  for (const double fixed : {0.01, 0.3, 3.0}) {
    for (const double each : {0.1, 1.0, 10.0}) {
      const TunedModel model(24, 2);
      const WireCost cost{fixed, each};
      const auto chosen = model.choose(cost, {25 * kTunedMiB, kTunedMiB});
      for (std::int64_t cap = 64 << 10; cap <= 64 * kTunedMiB; cap *= 2) {
        const double left = chosen.now_ms - 48;  // after the last gradient
        CHECK(chosen.then_ms <= model.end({cap, cap}, cost) + 0.1 * left + 1e-9);
      }
      CHECK((model.choose(cost, chosen.caps).caps == chosen.caps));
    }
  }
}

// So that the bits of a sum, which depend on where an element lies, do not depend on the caps.
TEST_CASE("[X06] where a gradient lies in memory does not depend on the caps, for the same order") {
  std::vector<ParameterLayout> layout;
  for (std::int64_t i = 0; i < 9; ++i) layout.push_back({"p" + std::to_string(i), {7 * i + 3}, at::kFloat, true});
  const std::vector<std::int32_t> order{4, 2, 8, 0, 1, 7, 6, 5, 3};
  const auto places = [&](std::int64_t cap, std::int64_t first) {
    std::vector<std::int64_t> found(layout.size());
    for (const auto& bucket : plan_buckets(layout, order, cap, first).buckets) {
      for (const auto& slot : bucket.slots) found[static_cast<std::size_t>(slot.parameter)] = slot.offset;
    }
    return found;
  };
  CHECK((places(64, 64) == places(1 << 20, 1 << 20)));
  CHECK((places(256, 64) == places(64, 256)));
}
