#pragma once
#include <algorithm>
#include <cstdint>

namespace troupe {

constexpr std::int64_t kCacheLine = 64;  // bytes

/// A rank's part of a tensor's bytes.
struct ByteSlice {
  std::int64_t begin;
  std::int64_t count;
};

/// The part of rank `rank`, perhaps empty, of `bytes` cut between cache lines into one part for each rank.
inline ByteSlice slice_of(std::int64_t bytes, int rank, int world_size) {
  const std::int64_t lines = (bytes + kCacheLine - 1) / kCacheLine;
  const std::int64_t part = (lines + world_size - 1) / world_size * kCacheLine;
  const std::int64_t begin = std::min(bytes, rank * part);
  return {begin, std::min(bytes - begin, part)};
}

}  // namespace troupe
