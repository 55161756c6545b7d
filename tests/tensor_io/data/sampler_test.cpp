#include "tensor_io/data/sampler.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {
SamplerOptions options(std::int64_t size, std::int64_t batch, int world_size = 1, int rank = 0) {
  SamplerOptions o;
  o.dataset_size = size;
  o.batch_size = batch;
  o.world_size = world_size;
  o.rank = rank;
  return o;
}

// The samples of a step over all ranks and micro-batches.
std::set<std::int64_t> samples_of(SamplerOptions o, std::int64_t epoch, std::int64_t step) {
  std::set<std::int64_t> samples;
  for (o.rank = 0; o.rank < o.world_size; ++o.rank) {
    const DistributedSampler sampler(o);
    for (std::int64_t m = 0; m < o.micro_batches; ++m) {
      for (const auto index : sampler.batch(epoch, step, m).indices) CHECK(samples.insert(index).second);
    }
  }
  return samples;
}
}  // namespace

TEST_CASE("[S01] the keyed permutation hits every number once") {
  const auto n = GENERATE(1, 2, 3, 64, 65, 1000);
  const Permutation order(n, 7);
  std::vector<std::int64_t> seen;
  for (std::int64_t i = 0; i < n; ++i) seen.push_back(order(i));
  std::sort(seen.begin(), seen.end());
  std::vector<std::int64_t> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  CHECK(seen == all);
  auto at_once = all;
  order.apply(at_once);
  for (std::int64_t i = 0; i < n; ++i) CHECK(at_once[static_cast<std::size_t>(i)] == order(i));
}

TEST_CASE("[S01] the keyed permutation is the one that checkpoints were written with") {
  const Permutation small(1000, 7), large(20'000, 0x0123456789abcdef);
  // Worked out by hand from the definition: four rounds of mix_seed(key, {round, right}).
  const std::vector<std::int64_t> expected{770, 407, 602, 179, 430, 87, 149, 895};
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(small(static_cast<std::int64_t>(i)) == expected[i]);
  const std::vector<std::int64_t> of_large{3704, 18337, 7043, 3008, 5515, 3804};
  for (std::size_t i = 0; i < of_large.size(); ++i) CHECK(large(static_cast<std::int64_t>(i)) == of_large[i]);
}

TEST_CASE("[S01] ranks are disjoint, cover the epoch, and epochs differ without set_epoch") {
  const auto world_size = GENERATE(1, 2, 4);
  std::set<std::int64_t> epoch;
  for (std::int64_t s = 0; s < 4; ++s) {
    for (const auto index : samples_of(options(64, 16, world_size), 3, s)) CHECK(epoch.insert(index).second);
  }
  CHECK(epoch.size() == 64);
  CHECK(DistributedSampler(options(64, 16)).batch(0, 0, 0).indices !=
        DistributedSampler(options(64, 16)).batch(1, 0, 0).indices);
  auto other = options(64, 16);
  other.seed = 43;
  CHECK(DistributedSampler(options(64, 16)).batch(0, 0, 0).indices != DistributedSampler(other).batch(0, 0, 0).indices);
}

TEST_CASE(
    "[S04] a step holds the same samples at any world size and number of micro-batches, so that a cursor means the "
    "same everywhere") {
  const auto alone = samples_of(options(1000, 32), 2, 5);
  auto split = options(1000, 32, 4);
  split.micro_batches = 2;
  CHECK(samples_of(split, 2, 5) == alone);
  CHECK(samples_of(options(1000, 32, 2), 2, 5) == alone);
}

TEST_CASE(
    "[X06] a step has the same samples whatever the ranks' shares, and a gradient weighs as much as its samples") {
  const auto alone = samples_of(options(1000, 32), 2, 5);
  auto shared = options(1000, 32, 3);
  shared.micro_batches = 2;
  shared.shares = {9, 1, 6};
  CHECK(samples_of(shared, 2, 5) == alone);
  double weights = 0;
  for (shared.rank = 0; shared.rank < 3; ++shared.rank) {
    const auto batch = DistributedSampler(shared).batch(2, 5, 1);
    CHECK(batch.indices.size() == static_cast<std::size_t>(shared.shares[static_cast<std::size_t>(shared.rank)]));
    CHECK(batch.weight == Approx(static_cast<double>(batch.indices.size()) * 3 / 16));
    weights += batch.weight;
  }
  CHECK(weights == Approx(3));
  shared.shares = {9, 1, 7};
  CHECK_THROWS_WITH(DistributedSampler(shared), Catch::Contains("not those of the batch"));
}

TEST_CASE("[S01] the last batch is dropped, or smaller, and each of its samples weighs as much as the others") {
  CHECK(DistributedSampler(options(70, 16)).steps_per_epoch() == 4);
  const auto [size, world_size, micro_batches] =
      GENERATE(table<std::int64_t, int, std::int64_t>({{70, 2, 1}, {70, 2, 2}, {65, 4, 2}, {71, 1, 4}, {3, 4, 2}}));
  auto o = options(size, 16, world_size);
  o.drop_last = false;
  o.micro_batches = micro_batches;
  const auto last = DistributedSampler(o).steps_per_epoch() - 1;
  const auto left = size - last * 16;
  std::multiset<std::int64_t> seen;
  double weights = 0;
  for (o.rank = 0; o.rank < world_size; ++o.rank) {
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      const auto batch = DistributedSampler(o).batch(0, last, m);
      INFO(size << " samples, rank " << o.rank << ", micro-batch " << m);
      REQUIRE_FALSE(batch.indices.empty());
      CHECK(batch.weight ==
            Approx(static_cast<double>(batch.counted * world_size * micro_batches) / static_cast<double>(left)));
      if (batch.counted > 0) seen.insert(batch.indices.begin(), batch.indices.end());
      weights += batch.weight;
    }
  }
  CHECK(seen.size() == static_cast<std::size_t>(left));
  CHECK(std::set<std::int64_t>(seen.begin(), seen.end()).size() == seen.size());
  CHECK(weights == Approx(world_size * micro_batches));
}

TEST_CASE("[S02] validation sees every sample once, in order, whatever the number of ranks") {
  const auto world_size = GENERATE(1, 2, 3, 7);
  std::int64_t next = 0;
  for (int r = 0; r < world_size; ++r) {
    const auto [first, last] = validation_part(359, r, world_size);
    CHECK(first == next);
    next = last;
  }
  CHECK(next == 359);
}

TEST_CASE(
    "[D14] the configured batch is global: it is divided by ranks and micro-batches, or refused with a size that "
    "works") {
  CHECK(DistributedSampler(options(1000, 64, 4)).batch(0, 0, 0).indices.size() == 16);
  CHECK_THROWS_WITH(
      DistributedSampler(options(1000, 64, 3)),
      Catch::Contains(
          "64 samples can't be shared out in equal parts to 3 ranks; use a multiple of 3, for instance 63"));
  CHECK_THROWS_WITH(DistributedSampler(options(10, 64)), Catch::Contains("fewer than one batch"));
  CHECK_THROWS_WITH(DistributedSampler(options(0, 64)), Catch::Contains("no samples"));
}
