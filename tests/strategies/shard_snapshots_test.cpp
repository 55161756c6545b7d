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

TEST_CASE("[C04] the copy of a shard that was damaged on its way is refused, never a crash") {
  const auto packed = ShardCopy::pack({2, 30, 1, 4}, "a note", {{"flat.0", torch::randn({33})}, {"moment.0.0.step", torch::tensor(4.0f)}});
  const auto refused = [](const at::Tensor& bytes) {
    try {
      ShardCopy::unpack(bytes);
    } catch (const Error& error) {
      return error.code() == ErrorCode::bad_data ? std::string(error.what()) : "another error: " + std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused(packed.bytes.clone()).empty());
  for (std::int64_t i = 0; i < packed.bytes.numel(); i += i < 600 ? 1 : 7) {
    auto bytes = packed.bytes.clone();
    bytes.data_ptr<std::uint8_t>()[i] ^= 1 << (i % 8);
    INFO(i);
    CHECK_THAT(refused(bytes), Catch::Contains("the copy of a shard"));
  }
  for (std::int64_t n = 0; n < packed.bytes.numel(); n += 5) CHECK_FALSE(refused(packed.bytes.narrow(0, 0, n).clone()).empty());
  CHECK_THAT(refused(torch::cat({packed.bytes, torch::zeros({64}, torch::kByte)})), Catch::Contains("XXH3"));
}

TEST_CASE("[C04] what a rank says that it has copies of is checked") {
  const std::vector<HeldShard> held{{1, 10, 0, 2}, {std::uint64_t(1) << 63, 1 << 30, 1, 2}};
  CHECK((held_shards_of(to_text(held)) == held));
  for (const auto* text :
       {"", "{}", "[1]", "[[1,10,0]]", "[[-1,10,0,2]]", "[[1,10,4294967296,2]]", "[[1,1.5,0,2]]", "[[1,18446744073709551615,0,2]]"}) {
    INFO(text);
    CHECK_THROWS_AS(held_shards_of(text), Error);
  }
}
