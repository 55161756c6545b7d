#pragma once
#include <cstdint>
#include <initializer_list>

namespace troupe {

/// SplitMix64's finaliser (Steele et al., OOPSLA 2014): a permutation of 64-bit values in which every bit depends on
/// all.
constexpr std::uint64_t mix_bits(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
constexpr std::uint64_t kSeedStep = 0x9e3779b97f4a7c15ull;  ///< SplitMix64's increment

/// One 64-bit value out of many by mix_bits: a seed for the thing that these numbers identify.
constexpr std::uint64_t mix_seed(std::uint64_t seed, std::initializer_list<std::uint64_t> parts) noexcept {
  std::uint64_t state = mix_bits(seed + kSeedStep);
  for (const auto part : parts) state = mix_bits(state + kSeedStep + part);
  return state;
}

}  // namespace troupe
