#pragma once
// Dropout's masks once more, from the formula of docs/numbers.md and the paper: Salmon et al., "Parallel Random
// Numbers: As Easy as 1, 2, 3", SC 2011. Includes nothing of Troupe.
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "tests/differential/net.hpp"

namespace troupe::differential {

/// Philox4x32-10.
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const auto a = std::uint64_t{0xD2511F53} * counter[0], b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

/// SplitMix64's finaliser over the numbers in turn.
inline std::uint64_t mixed(std::uint64_t seed, const std::vector<std::uint64_t>& numbers) {
  const auto finish = [](std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  };
  auto state = finish(seed + 0x9e3779b97f4a7c15ULL);
  for (const auto number : numbers) state = finish(state + 0x9e3779b97f4a7c15ULL + number);
  return state;
}

struct ReferenceDropoutImpl : torch::nn::Module {
  explicit ReferenceDropoutImpl(double probability) : p(probability) {}

  at::Tensor forward(const at::Tensor& x) {
    if (!is_training()) return x;
    std::vector<at::Tensor> masks;
    const auto call = static_cast<std::uint64_t>(calls++);
    for (const auto& part : place->parts) {
      auto sizes = x.sizes().vec();
      sizes[0] = part.rows;
      masks.push_back(
          mask(sizes,
               mixed(seed, {static_cast<std::uint64_t>(place->step), static_cast<std::uint64_t>(place->micro_batch),
                            static_cast<std::uint64_t>(part.rank)}),
               call));
    }
    return x * at::cat(masks).to(x.scalar_type()) / (1 - p);
  }

  at::Tensor mask(const std::vector<std::int64_t>& sizes, std::uint64_t key, std::uint64_t call) const {
    auto values = at::empty(sizes, at::kDouble);
    auto* out = values.data_ptr<double>();
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      const auto at = static_cast<std::uint64_t>(i / 4);
      const auto numbers = philox({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32),
                                   static_cast<std::uint32_t>(call), layer},
                                  {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
      out[i] = static_cast<double>(numbers[static_cast<std::size_t>(i % 4)]) >= std::round(p * 0x1p32) ? 1 : 0;
    }
    return values;
  }

  double p;
  std::uint64_t seed = 0;
  std::uint32_t layer = 0;
  std::int64_t calls = 0;
  const Place* place = nullptr;
};
TORCH_MODULE(ReferenceDropout);

/// Distinct layers are numbered in the order of their registration.
inline void place_reference_dropout(torch::nn::Module& net, int seed) {
  std::set<const void*> seen;
  for (const auto& module : net.modules()) {
    auto* dropout = dynamic_cast<ReferenceDropoutImpl*>(module.get());
    if (dropout == nullptr || !seen.insert(dropout).second) continue;
    dropout->seed = static_cast<std::uint64_t>(seed);
    dropout->layer = static_cast<std::uint32_t>(seen.size() - 1);
  }
}
inline void move_reference_dropout(torch::nn::Module& net, const Place& place) {
  for (const auto& module : net.modules()) {
    if (auto* dropout = dynamic_cast<ReferenceDropoutImpl*>(module.get())) {
      dropout->place = &place;
      dropout->calls = 0;
    }
  }
}

}  // namespace troupe::differential
