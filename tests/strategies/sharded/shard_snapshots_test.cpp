#include "strategies/sharded/shard_snapshots.hpp"

#include <torch/torch.h>

#include "tests/catch.hpp"
#include "tests/support/rank_threads.hpp"

using namespace troupe;

namespace {

// What rank r's shard holds at a step.
at::Tensor shard_of(int rank, std::int64_t step) {
  return torch::arange(1000 + 70'000 * rank, torch::kFloat) + 10'000.0f * step;
}

void take(ShardSnapshots& snapshots, Communicator& communicator, std::uint64_t generation, std::int64_t step,
          const std::string& note = "") {
  const std::vector<std::string> hosts(static_cast<std::size_t>(communicator.world_size()), "here");
  const HeldShard held{generation, step, communicator.rank(), communicator.world_size()};
  snapshots.exchange(ShardPacker(held, note, {{"flat.0", shard_of(communicator.rank(), step)}}), hosts, communicator);
}

ShardCopy packed_copy(const HeldShard& held, const std::string& note, const NamedTensors& tensors) {
  return ShardCopy::unpack(ShardPacker(held, note, tensors).pack());
}

// The step of the set that comes back to the ranks of `communicator`; -1 if none does.
std::int64_t step_restored(ShardSnapshots& snapshots, Communicator& communicator) {
  std::vector<std::int64_t> placed;
  try {
    const auto plan = snapshots.restore(communicator, [&](const ShardCopy& copy) {
      placed.push_back(copy.held.step);
      test::require(copy.tensors.size() == 1 && copy.tensors[0].second.equal(shard_of(copy.held.shard, copy.held.step)),
                    "shard " + std::to_string(copy.held.shard) + " has the values of its step");
    });
    test::require(placed == std::vector<std::int64_t>(plan.holders.size(), plan.step),
                  "every shard of that step is placed, once");
    return plan.step;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::state_lost) throw;
    test::require(placed.empty(), "nothing is placed of a set that is not whole");
    return -1;
  }
}

}  // namespace

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
  const auto packed = packed_copy({2, 30, 1, 4}, "a note", tensors);
  for (const auto& copy : {packed, ShardCopy::unpack(packed.bytes.clone())}) {
    CHECK((copy.held == HeldShard{2, 30, 1, 4, copy.bytes.numel()}));
    CHECK(copy.note == "a note");
    REQUIRE(copy.tensors.size() == tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      CHECK(copy.tensors[i].first == tensors[i].first);
      CHECK((copy.tensors[i].second.scalar_type() == tensors[i].second.scalar_type() &&
             copy.tensors[i].second.equal(tensors[i].second)));
    }
  }
}

TEST_CASE("[C04] the copy of a shard that was damaged on its way is refused, never a crash") {
  const auto packed =
      packed_copy({2, 30, 1, 4}, "a note", {{"flat.0", torch::randn({33})}, {"moment.0.0.step", torch::tensor(4.0f)}});
  const auto refused = [](const at::Tensor& bytes) {
    try {
      ShardCopy::unpack(bytes);
    } catch (const Error& error) {
      return error.code() == ErrorCode::bad_data ? std::string(error.what())
                                                 : "another error: " + std::string(error.what());
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
  for (std::int64_t n = 0; n < packed.bytes.numel(); n += 5)
    CHECK_FALSE(refused(packed.bytes.narrow(0, 0, n).clone()).empty());
  CHECK_THAT(refused(torch::cat({packed.bytes, torch::zeros({64}, torch::kByte)})), Catch::Contains("XXH3"));
}

TEST_CASE("[C04] a packed shard has the bits of its tensors wherever they lie beside the pieces that are hashed") {
  const auto one = torch::randn({200'001}), two = torch::randn({65'536}), turned = torch::randn({300, 400}).t();
  for (const NamedTensors& tensors :
       {NamedTensors{{"one", one}, {"two", two}}, NamedTensors{{"two", two}, {"turned", turned}, {"one", one}},
        NamedTensors{{"a", two.narrow(0, 3, 1)}, {"one", one.narrow(0, 1, 199'999)}, {"b", two}}}) {
    const auto copy = packed_copy({1, 2, 0, 1}, std::string(tensors.size() * 100, 'n'), tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i) CHECK(copy.tensors[i].second.equal(tensors[i].second));
    for (std::int64_t at = 3; at < copy.bytes.numel() + 100'000; at += 100'000) {  // in each piece, and at the end
      auto bytes = copy.bytes.clone();
      bytes[std::min(at, bytes.numel() - 1)].bitwise_xor_(1);
      CHECK_THROWS_AS(ShardCopy::unpack(bytes), Error);
    }
  }
}

TEST_CASE("[C04] a tensor of which no copy can be kept is named when the copy is made") {
  const auto packed = [](const NamedTensors& tensors) { return ShardPacker({1, 2, 0, 1}, "", tensors).bytes(); };
  CHECK_THROWS_WITH(packed({{"buffer.turns", torch::zeros({2}, torch::kComplexDouble)}}),
                    Catch::Contains("'buffer.turns' is of type ComplexDouble; set --snapshot_every 0"));
  CHECK_THROWS_WITH(packed({{"a", torch::zeros({2})}, {"a", torch::zeros({2})}}), Catch::Contains("'a' appears twice"));
}

TEST_CASE(
    "[C04] with memory in common any rank alone has the whole state, else a rank's shard outlives it if its buddy "
    "does") {
  const std::string backend = GENERATE("shm", "gloo");
  INFO(backend);
  CHECK_NOTHROW(test::run_ranks({{backend, backend}, 3}, [&](Communicator& communicator) {
    ShardSnapshots snapshots;
    test::require(step_restored(snapshots, communicator) == -1, "there is none at first");
    for (std::int64_t step = 0; step < 5; ++step) take(snapshots, communicator, 1, step);
    take(snapshots, communicator, 1, 5, std::string(20'000, 'n'));  // a note that outgrew its place
    take(snapshots, communicator, 1, 6);
    test::require(step_restored(snapshots, communicator) == 6, "the newest comes back");
    const auto two = communicator.split(communicator.rank() == 0 ? -1 : 0, 0);  // rank 0 is dead
    if (two) test::require(step_restored(snapshots, *two) == 6, "two of three have it all");
    const auto one = communicator.split(communicator.rank() == 2 ? 0 : -1, 0);  // and so is its buddy
    if (one)
      test::require(step_restored(snapshots, *one) == (backend == "shm" ? 6 : -1),
                    "one has it all in common memory only");
    if (two) {
      take(snapshots, *two, 2, 9);
      take(snapshots, *two, 2, 10);
      take(snapshots, *two, 2, 11);
      test::require(step_restored(snapshots, *two) == 11, "those that are left go on");
    }
  }));
}

TEST_CASE("[C04] a rank that dies while a set is taken leaves the one before") {
  const std::string backend = GENERATE("shm", "gloo");
  INFO(backend);
  std::array<ShardSnapshots, 3> snapshots;
  const auto failures = test::run_ranks_catching({{backend, backend}, 3}, [&](Communicator& communicator) {
    auto& mine = snapshots[static_cast<std::size_t>(communicator.rank())];
    for (std::int64_t step = 0; step < 4; ++step) take(mine, communicator, 1, step);
    if (communicator.rank() != 1) return take(mine, communicator, 1, 4);
    communicator.all_gather_bytes("[[1,4,1,3,100]]", "snapshot");  // the others begin to write
    communicator.abort({.code = ErrorCode::peer_lost, .cause = "killed by the test"});
  });
  CHECK((failures[0] && failures[2]));
  CHECK_NOTHROW(test::run_ranks({{backend, backend}, 2}, [&](Communicator& communicator) {
    auto& mine = snapshots[communicator.rank() == 0 ? 0 : 2];
    test::require(step_restored(mine, communicator) == 3, "all have the one before");
    take(mine, communicator, 2, 3);
    take(mine, communicator, 2, 4);
    test::require(step_restored(mine, communicator) == 4, "and go on");
  }));
}

TEST_CASE("[C04] what a rank says that it has copies of is checked") {
  const std::vector<HeldShard> held{{1, 10, 0, 2, 0}, {std::uint64_t(1) << 63, 1 << 30, 1, 2, std::int64_t(1) << 40}};
  CHECK((held_shards_of(to_text(held)) == held));
  for (const auto* text :
       {"", "{}", "[1]", "[[1,10,0,2]]", "[[-1,10,0,2,9]]", "[[1,10,4294967296,2,9]]", "[[1,1.5,0,2,9]]",
        "[[1,18446744073709551615,0,2,9]]", "[[1,10,0,2,-1]]", "[[1,10,0,2,1099511627777]]"}) {
    INFO(text);
    CHECK_THROWS_AS(held_shards_of(text), Error);
  }
}

TEST_CASE("[L04] the shards of ranks that leave are kept by ranks that stay") {
  CHECK((heirs_of({1}, 3) == std::vector<int>{0}));
  CHECK((heirs_of({0, 1}, 4) == std::vector<int>{2, 3}));
  CHECK((heirs_of({0, 1, 2}, 4) == std::vector<int>{3, 3, 3}));
  CHECK(heirs_of({0, 1}, 2).empty());
}
