#pragma once
#include <cstdint>

#include "tensor_io/base/philox.hpp"  // TROUPE_HOST_DEVICE

// How bytes are hashed, for nvcc and for the CPU.
namespace troupe::cuda {

/// 4 bytes from `bytes`, of any alignment; those beyond its `count` are 0.
TROUPE_HOST_DEVICE inline std::uint32_t word_at(const unsigned char* bytes, std::int64_t count, std::int64_t word) {
  std::uint32_t value = 0;
  for (int k = 0; k < 4 && 4 * word + k < count; ++k) value |= std::uint32_t{bytes[4 * word + k]} << (8 * k);
  return value;
}

/// SplitMix64's finalizer of a word and its place.
TROUPE_HOST_DEVICE inline std::uint64_t hash_of_word(std::uint32_t word, std::int64_t place) {
  std::uint64_t x = word + static_cast<std::uint64_t>(place + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace troupe::cuda
