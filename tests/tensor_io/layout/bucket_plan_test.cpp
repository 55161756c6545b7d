#include "tensor_io/layout/bucket_plan.hpp"

#include <set>

#include "tests/catch.hpp"

using namespace troupe;

namespace {
std::vector<ParameterLayout> layers(std::initializer_list<std::int64_t> numels) {
  std::vector<ParameterLayout> layout;
  for (const auto n : numels) layout.push_back({"p" + std::to_string(layout.size()), {n}, at::kFloat, true});
  return layout;
}
constexpr std::int64_t kMiB = 1 << 20;
}  // namespace

TEST_CASE("[D02] the first bucket is small and the rest hold up to the cap") {
  const auto layout = layers({kMiB, kMiB, kMiB, kMiB, kMiB / 4});  // 4 MiB each, the last registered 1 MiB
  const auto plan = plan_buckets(layout, registration_order(layout), 8 * kMiB, kMiB);
  REQUIRE(plan.buckets.size() == 3);
  CHECK(plan.buckets[0].slots.size() == 1);
  CHECK(plan.buckets[0].slots[0].parameter == 4);
  CHECK(plan.buckets[1].slots.size() == 2);
  CHECK(plan.buckets[2].slots.back().parameter == 0);
}

TEST_CASE("[D02] buckets follow the order in which gradients became ready") {
  const auto layout = layers({10, 20, 30});
  const std::vector<std::int32_t> order{1, 0, 2};
  const auto plan = plan_buckets(layout, order, 4, 4);
  REQUIRE(plan.buckets.size() == 3);
  CHECK(plan.buckets[0].slots[0].parameter == 1);
  CHECK(plan.buckets[1].slots[0].parameter == 0);
  CHECK(plan.hash != plan_buckets(layout, registration_order(layout), 4, 4).hash);
}

TEST_CASE("[D02] a plan covers every trainable parameter once, aligned and without overlap, whatever the order") {
  auto layout = layers({1, 7, 16, 17, 1000, 3});
  layout[2].requires_grad = false;
  layout[4].dtype = at::kDouble;
  const std::vector<std::int32_t> order{5, 5, 99, 0};  // repeated, unknown, incomplete
  const auto cap = GENERATE(1, 100, 1 << 20);
  const auto plan = plan_buckets(layout, order, cap, cap);
  std::set<std::int32_t> seen;
  std::map<at::ScalarType, std::int64_t> end;
  for (const auto& bucket : plan.buckets) {
    CHECK(bucket.begin == end[bucket.dtype]);
    for (const auto& slot : bucket.slots) {
      CHECK(seen.insert(slot.parameter).second);
      CHECK(slot.offset >= end[bucket.dtype]);
      CHECK(slot.offset * static_cast<std::int64_t>(c10::elementSize(bucket.dtype)) % 64 == 0);
      CHECK(layout[static_cast<std::size_t>(slot.parameter)].dtype == bucket.dtype);
      end[bucket.dtype] = slot.offset + slot.numel;
    }
    CHECK(bucket.end >= end[bucket.dtype]);
    end[bucket.dtype] = bucket.end;
  }
  CHECK(seen == std::set<std::int32_t>{0, 1, 3, 4, 5});
  CHECK((plan.flats == plan_buckets(layout, registration_order(layout), 64, 64).flats));
}

TEST_CASE("[D13] a layout that differs is described by the first parameter that does") {
  auto mine = layers({4, 5});
  auto theirs = mine;
  CHECK(layout_difference(layout_text(mine), 0, layout_text(theirs), 1).empty());
  theirs[1].requires_grad = false;
  CHECK(layout_hash(mine) != layout_hash(theirs));
  CHECK(layout_difference(layout_text(mine), 0, layout_text(theirs), 1) ==
        "parameter 1 is p1 (5) Float frozen on rank 1 and is p1 (5) Float on rank 0");
  theirs.pop_back();
  CHECK_THAT(layout_difference(layout_text(mine), 0, layout_text(theirs), 1),
             Catch::Contains("does not exist on rank 1"));
}
