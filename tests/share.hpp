#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace troupe::testing {

/// For a test of many combinations: whether this one is run. All are, unless TROUPE_SHARE is set, as `./dev test` sets
/// it to the commit: then about `share` (0 to 1) of them, others for each commit. `combination` names it.
inline bool in_share(double share, const std::string& combination) {
  const char* seed = std::getenv("TROUPE_SHARE");
  if (seed == nullptr) return true;
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char c : std::string(seed) + " " + combination)
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  hash ^= hash >> 32;
  return static_cast<double>(hash % 1000) < 1000 * share;
}

}  // namespace troupe::testing
