#include "tensor_io/data/shard_order.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "tensor_io/data/sampler.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

SamplerOptions sharded(std::vector<std::int64_t> sizes, std::int64_t batch, int world_size = 1, int rank = 0) {
  SamplerOptions o;
  for (const auto size : sizes) o.dataset_size += size;
  o.shard_sizes = std::move(sizes);
  o.shuffle_buffer = 8;
  o.batch_size = batch;
  o.world_size = world_size;
  o.rank = rank;
  return o;
}

// What counts of a step, over all ranks and micro-batches.
std::multiset<std::int64_t> counted_of(SamplerOptions o, std::int64_t epoch, std::int64_t step) {
  std::multiset<std::int64_t> samples;
  for (o.rank = 0; o.rank < o.world_size; ++o.rank) {
    const DistributedSampler sampler(o);
    for (std::int64_t m = 0; m < o.micro_batches; ++m) {
      const auto batch = sampler.batch(epoch, step, m);
      samples.insert(batch.indices.begin(), batch.indices.begin() + batch.counted);
    }
  }
  return samples;
}

std::size_t shard_of(const std::vector<std::int64_t>& sizes, std::int64_t index) {
  std::size_t shard = 0;
  for (; index >= sizes[shard]; ++shard) index -= sizes[shard];
  return shard;
}

const std::vector<std::int64_t> kUneven{5, 31, 1, 16, 2, 40, 7, 26};

}  // namespace

TEST_CASE("[S01] data in shards of any length is read whole, each sample once, by any number of ranks") {
  const auto sizes = GENERATE(as<std::vector<std::int64_t>>{}, kUneven, std::vector<std::int64_t>{128},
                              std::vector<std::int64_t>{64, 0, 64}, std::vector<std::int64_t>(32, 4));
  const auto world_size = GENERATE(1, 2, 4, 16);  // also more ranks than shards
  auto o = sharded(sizes, 16, world_size);
  const auto drop = GENERATE(true, false);
  o.drop_last = drop;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::multiset<std::int64_t> all;
    for (std::int64_t s = 0; s < DistributedSampler(o).steps_per_epoch(); ++s) all.merge(counted_of(o, epoch, s));
    CHECK(all.size() == 128);
    CHECK(std::set<std::int64_t>(all.begin(), all.end()).size() == 128);
  }
}

TEST_CASE("[S01] the last batch of shards is dropped, or smaller") {
  auto o = sharded({30, 9, 31}, 16, 2);
  CHECK(DistributedSampler(o).steps_per_epoch() == 4);
  o.drop_last = false;
  std::multiset<std::int64_t> all;
  for (std::int64_t s = 0; s < 5; ++s) all.merge(counted_of(o, 0, s));
  CHECK(all.size() == 70);
  CHECK(std::set<std::int64_t>(all.begin(), all.end()).size() == 70);
  double weights = 0;
  for (o.rank = 0; o.rank < 2; ++o.rank) weights += DistributedSampler(o).batch(0, 4, 0).weight;
  CHECK(weights == Approx(2));
}

TEST_CASE(
    "[S04] a step of sharded data holds the same samples at any world size and number of micro-batches: a cursor is "
    "all that resuming "
    "needs") {
  const auto alone = counted_of(sharded(kUneven, 16), 3, 4);
  CHECK(alone.size() == 16);
  const auto world_size = GENERATE(2, 4, 8);
  auto o = sharded(kUneven, 16, world_size);
  CHECK(counted_of(o, 3, 4) == alone);
  o.micro_batches = 2;
  CHECK(counted_of(o, 3, 4) == alone);
  // Shares of ranks that are not equally fast.
  auto shared = sharded(kUneven, 16, 3);
  shared.micro_batches = 2;
  shared.shares = {5, 1, 2};
  CHECK(counted_of(shared, 3, 4) == alone);
  // A job that lost a rank keeps its batch.
  auto lost = sharded(kUneven, 16, 3);
  lost.uneven = true;
  CHECK(counted_of(lost, 3, 4) == alone);
}

TEST_CASE("[S05] a rank reads its own shards, and at most one at each end with a neighbour") {
  const std::vector<std::int64_t> sizes(16, 20);
  std::map<std::size_t, std::set<int>> readers;
  for (int rank = 0; rank < 4; ++rank) {
    const DistributedSampler sampler(sharded(sizes, 32, 4, rank));
    std::set<std::size_t> mine;
    for (std::int64_t s = 0; s < sampler.steps_per_epoch(); ++s) {
      for (const auto index : sampler.batch(0, s, 0).indices) mine.insert(shard_of(sizes, index));
    }
    CHECK(mine.size() <= 6);
    for (const auto shard : mine) readers[shard].insert(rank);
  }
  CHECK(readers.size() == 16);
  CHECK(std::count_if(readers.begin(), readers.end(), [](const auto& each) { return each.second.size() > 1; }) <= 3);
}

TEST_CASE("[S01] shards and samples are shuffled by seed and epoch, or read in order") {
  auto o = sharded(std::vector<std::int64_t>(8, 50), 16);
  const auto first = [](const SamplerOptions& options, std::int64_t epoch) {
    return DistributedSampler(options).batch(epoch, 0, 0).indices;
  };
  CHECK(first(o, 0) == first(o, 0));
  CHECK(first(o, 0) != first(o, 1));
  auto other = o;
  other.seed = 43;
  CHECK(first(o, 0) != first(other, 0));
  std::set<std::size_t> shards;
  for (const auto index : first(o, 0)) shards.insert(shard_of(o.shard_sizes, index));
  CHECK(shards.size() > 4);  // a batch mixes lanes
  o.shuffle = false;
  std::vector<std::int64_t> in_order(16);
  for (std::size_t i = 0; i < in_order.size(); ++i) in_order[i] = static_cast<std::int64_t>(i);
  CHECK(first(o, 0) == in_order);
  o.shuffle = true;
  o.shuffle_buffer = 1;  // then only shards change places
  const auto one = DistributedSampler(o).batch(0, 0, 0).indices, two = DistributedSampler(o).batch(0, 1, 0).indices;
  CHECK(two[0] == one[1] + 1);  // a lane's two slots go through it
}
