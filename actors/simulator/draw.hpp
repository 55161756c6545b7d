#pragma once
#include <cstdint>
#include <string_view>

#include "tensor_io/base/mix_seed.hpp"

namespace troupe::simulator {

/// A stream of random numbers that is a function of (seed, name). The draws of one part of a simulation do not shift
/// those of another, so a schedule with one fault less stays alike in all else.
class Draw {
 public:
  Draw(std::uint64_t seed, std::string_view name) noexcept : state_(seed) {
    for (const char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    next();
  }
  std::uint64_t next() noexcept { return mix_bits(state_ += kSeedStep); }  // SplitMix64
  /// In [from, to].
  std::int64_t in(std::int64_t from, std::int64_t to) noexcept {
    return from + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(to - from + 1));
  }
  bool once_in(int times) noexcept { return next() % static_cast<std::uint64_t>(times) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace troupe::simulator
