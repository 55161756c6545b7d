#include "strategies/shard_snapshots.hpp"

#include <torch/torch.h>

#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE("[C04] a state is restored from the newest step of which every shard has a copy") {
  const auto plan = [](const std::vector<std::vector<HeldShard>>& held) { return plan_restore(held); };
  CHECK_FALSE(plan({{}, {}}).has_value());
  // Rank 1 of three died: its buddy has its shard.
  const auto after = plan({{{1, 10, 0, 3}, {1, 10, 2, 3}}, {{1, 10, 2, 3}, {1, 10, 1, 3}}});
  REQUIRE(after);
  CHECK((after->step == 10 && after->generation == 1 && after->holders == std::vector<int>{0, 1, 0}));
  // Of step 20 shard 1 is missing, 10 is whole.
  const auto older = plan({{{1, 10, 0, 2}, {1, 20, 0, 2}}, {{1, 10, 1, 2}}});
  REQUIRE(older);
  CHECK(older->step == 10);
  // Another cut of the same step does not make it whole.
  CHECK_FALSE(plan({{{1, 10, 0, 2}}, {{2, 10, 1, 2}}}).has_value());
  CHECK_FALSE(plan({{{1, 10, 0, 3}}, {{1, 10, 1, 2}}}).has_value());
  // Replicas: whoever has it.
  CHECK((plan({{}, {{1, 10, 0, 2}}, {{1, 10, 1, 2}}, {{1, 10, 0, 2}}})->holders == std::vector<int>{1, 2}));
  CHECK_FALSE(plan({{{1, 10, 7, 2}, {1, 10, -1, 2}, {1, 10, 0, 0}}}).has_value());
}

TEST_CASE("[C04] a rank's buddy is on another host where there is one") {
  CHECK(buddy_shift({"a"}) == 0);
  CHECK(buddy_shift({"a", "a"}) == 1);
  CHECK(buddy_shift({"a", "b"}) == 1);
  CHECK(buddy_shift({"a", "a", "b", "b"}) == 2);
  CHECK(buddy_shift({"a", "a", "a", "a", "b", "b", "b", "b", "c", "c", "c", "c"}) == 4);
  CHECK(buddy_shift({"a", "b", "a", "b"}) == 1);
  const std::vector<std::string> uneven{"a", "a", "a", "b"};  // the most that can be had
  CHECK(buddy_shift(uneven) == 1);
}

TEST_CASE("[C04] a packed shard comes back bit by bit, also from its bytes alone") {
  const NamedTensors tensors{{"flat.0", torch::randn({33})},         {"moment.3.0.step", torch::tensor(4.0f)},
                             {"half", torch::ones({3}, at::kHalf)},  {"empty", torch::zeros({0, 2})},
                             {"flags", torch::ones({5}, at::kBool)}, {"long", torch::arange(3)}};
  const auto packed = ShardCopy::pack({2, 30, 1, 4}, "a note", tensors);
  for (const auto& copy : {packed, ShardCopy::unpack(packed.bytes.clone())}) {
    CHECK((copy.held == HeldShard{2, 30, 1, 4}));
    CHECK(copy.note == "a note");
    REQUIRE(copy.tensors.size() == tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      CHECK(copy.tensors[i].first == tensors[i].first);
      CHECK((copy.tensors[i].second.scalar_type() == tensors[i].second.scalar_type() && copy.tensors[i].second.equal(tensors[i].second)));
    }
  }
}
