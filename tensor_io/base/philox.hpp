#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define TROUPE_HOST_DEVICE __host__ __device__
#else
#define TROUPE_HOST_DEVICE
#endif

namespace troupe {

struct PhiloxNumbers {
  std::uint32_t of[4];
};

/// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): the four numbers of a counter
/// whose low half is `offset` and whose high half is `subsequence`. They are the first ones of at::Philox4_32(key,
/// subsequence, offset), in plain types, so that nvcc can read them.
TROUPE_HOST_DEVICE inline PhiloxNumbers philox(std::uint64_t key, std::uint64_t subsequence, std::uint64_t offset) {
  constexpr std::uint32_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  PhiloxNumbers x{{static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32U),
                   static_cast<std::uint32_t>(subsequence), static_cast<std::uint32_t>(subsequence >> 32U)}};
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < kRounds; ++round, key0 += kWeyl0, key1 += kWeyl1) {
    const std::uint64_t product0 = static_cast<std::uint64_t>(kMultiply0) * x.of[0];
    const std::uint64_t product1 = static_cast<std::uint64_t>(kMultiply1) * x.of[2];
    x = {{static_cast<std::uint32_t>(product1 >> 32U) ^ x.of[1] ^ key0, static_cast<std::uint32_t>(product1),
          static_cast<std::uint32_t>(product0 >> 32U) ^ x.of[3] ^ key1, static_cast<std::uint32_t>(product0)}};
  }
  return x;
}

}  // namespace troupe
