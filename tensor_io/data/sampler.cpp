#include "tensor_io/data/sampler.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/mix_seed.hpp"
#include "tensor_io/base/processor_clones.hpp"

namespace troupe {

namespace {

constexpr std::size_t kRounds = 4;
using RoundKeys = std::array<std::uint64_t, kRounds>;

inline std::uint64_t encrypt(std::uint64_t x, const RoundKeys& keys, unsigned half_bits) noexcept {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = x >> half_bits, right = x & mask;
  for (const auto key : keys) {
    const std::uint64_t next = left ^ (mix_bits(key + right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

// A number's four rounds are a chain of multiplications; those of many overlap.
TROUPE_PROCESSOR_CLONES void encrypt_all(std::uint64_t* numbers, std::size_t count, const RoundKeys& keys,
                                         unsigned half_bits) {
  for (std::size_t i = 0; i < count; ++i) numbers[i] = encrypt(numbers[i], keys, half_bits);
}

}  // namespace

Permutation::Permutation(std::int64_t n, std::uint64_t key) : n_(n) {
  for (std::size_t round = 0; round < kRounds; ++round) keys_[round] = mix_seed(key, {round}) + kSeedStep;
  const auto bits = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(n > 1 ? n - 1 : 1)));
  half_bits_ = (bits + 1) / 2;
}

std::int64_t Permutation::operator()(std::int64_t position) const noexcept {
  auto x = static_cast<std::uint64_t>(position);
  do x = encrypt(x, keys_, half_bits_);
  while (x >= static_cast<std::uint64_t>(n_));
  return static_cast<std::int64_t>(x);
}

void Permutation::apply(std::span<std::int64_t> positions) const {
  std::vector<std::uint64_t> numbers(positions.begin(), positions.end());
  std::vector<std::size_t> places(positions.size());  // of `numbers`, those that have not landed inside
  std::iota(places.begin(), places.end(), std::size_t{0});
  for (auto left = numbers.size(); left > 0;) {
    encrypt_all(numbers.data(), left, keys_, half_bits_);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < left; ++i) {
      const auto number = numbers[i];
      const auto place = places[i];
      positions[place] = static_cast<std::int64_t>(number);
      numbers[kept] = number;
      places[kept] = place;
      kept += number >= static_cast<std::uint64_t>(n_) ? 1 : 0;
    }
    left = kept;
  }
}

DistributedSampler::DistributedSampler(SamplerOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  const auto parts = o.micro_batches * o.world_size;
  const bool cut = o.uneven || !o.shares.empty() ? o.batch_size % o.micro_batches == 0 && o.batch_size >= parts
                                                 : o.batch_size % parts == 0;
  if (o.batch_size <= 0 || parts <= 0 || !cut) {
    const auto down = parts > 0 ? o.batch_size / parts * parts : 0;
    throw Error(
        ErrorCode::usage, "batch_size",
        std::to_string(o.batch_size) + (o.batch_size == 1 ? " sample" : " samples") +
            " can't be shared out in equal parts to " + std::to_string(o.world_size) +
            (o.world_size == 1 ? " rank" : " ranks") +
            (o.micro_batches == 1 ? "" : " in " + std::to_string(o.micro_batches) + " micro-batches"),
        "use a multiple of " + std::to_string(parts) + ", for instance " + std::to_string(down > 0 ? down : parts));
  }
  if (!o.shares.empty() &&
      (o.shares.size() != static_cast<std::size_t>(o.world_size) ||
       std::accumulate(o.shares.begin(), o.shares.end(), std::int64_t{0}) != o.batch_size / o.micro_batches)) {
    throw Error(ErrorCode::internal, "sampler", "the ranks' shares are not those of the batch");
  }
  if (o.dataset_size <= 0) throw Error(ErrorCode::usage, "data set", "it has no samples");
  steps_ = o.drop_last ? o.dataset_size / o.batch_size : (o.dataset_size + o.batch_size - 1) / o.batch_size;
  if (steps_ == 0) {
    throw Error(ErrorCode::usage, "data set",
                "its " + std::to_string(o.dataset_size) + " samples are fewer than one batch of " +
                    std::to_string(o.batch_size),
                "lower batch_size, or set drop_last to false");
  }
  if (!o.shard_sizes.empty())
    shards_.emplace(ShardOrderOptions{o.shard_sizes, o.batch_size, o.shuffle, o.shuffle_buffer, o.seed});
}

SampledBatch DistributedSampler::batch(std::int64_t epoch, std::int64_t step, std::int64_t micro_batch) const {
  const auto& o = options_;
  const Permutation order(o.dataset_size, mix_seed(o.seed, {0x5a3e, static_cast<std::uint64_t>(epoch)}));
  const auto all = o.batch_size / o.micro_batches;
  const auto begin_of = [&](int rank) {
    return o.shares.empty() ? all * rank / o.world_size
                            : std::accumulate(o.shares.begin(), o.shares.begin() + rank, std::int64_t{0});
  };
  const auto first = begin_of(o.rank), share = begin_of(o.rank + 1) - first;
  const auto of_step = std::min(o.batch_size, o.dataset_size - step * o.batch_size);  // an epoch's last one is smaller
  SampledBatch batch;
  batch.indices.reserve(static_cast<std::size_t>(share));
  if (shards_) {
    // A rank's micro-batches lie one behind the other, so that its slots of the whole step are contiguous.
    const auto slot = first * o.micro_batches + micro_batch * share;
    for (const auto& place : shards_->slots(epoch, step, slot, slot + share)) {
      if (!place.padding) batch.indices.push_back(place.index);
    }
  } else {
    // What there is, cut as a whole batch is.
    const auto begin = of_step * micro_batch / o.micro_batches, end = of_step * (micro_batch + 1) / o.micro_batches;
    const auto place = [&](std::int64_t part) { return step * o.batch_size + begin + (end - begin) * part / all; };
    for (auto position = place(first); position < place(first + share); ++position) batch.indices.push_back(position);
    if (o.shuffle) order.apply(batch.indices);
  }
  batch.counted = static_cast<std::int64_t>(batch.indices.size());
  batch.weight = of_step == o.batch_size ? static_cast<double>(share * o.world_size) / static_cast<double>(all)
                                         : static_cast<double>(batch.counted * o.world_size * o.micro_batches) /
                                               static_cast<double>(of_step);
  if (batch.indices.empty()) {  // every collective of the step finds the rank there
    batch.indices.assign(static_cast<std::size_t>(share), step * o.batch_size);
    if (o.shuffle && !shards_) order.apply(batch.indices);
  }
  return batch;
}

std::pair<std::int64_t, std::int64_t> validation_part(std::int64_t dataset_size, int rank, int world_size) {
  return {dataset_size * rank / world_size, dataset_size * (rank + 1) / world_size};
}

}  // namespace troupe
