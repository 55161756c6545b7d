#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <initializer_list>
#include <mutex>

namespace troupe {

/// SplitMix64's finaliser (Steele et al., OOPSLA 2014): a permutation of 64-bit values in which every bit depends on all.
constexpr std::uint64_t mix_bits(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
constexpr std::uint64_t kSeedStep = 0x9e3779b97f4a7c15ull;  ///< SplitMix64's increment

/// One 64-bit value out of many by mix_bits: the seed of whatever these numbers identify.
std::uint64_t mix_seed(std::uint64_t seed, std::initializer_list<std::uint64_t> parts) noexcept;

/// Seeds LibTorch's CPU generator (one per process; thread-safe) with mix_seed, and that of `device` where it is a GPU.
void seed_generator(std::uint64_t seed, std::initializer_list<std::uint64_t> parts, c10::Device device = c10::kCPU);

/// The same for what a program builds before its first step: a model's first values. Ranks that share a process share the generator: while
/// one keeps what this returns, no other begins to build.
std::unique_lock<std::mutex> seed_model(std::uint64_t seed);

}  // namespace troupe
