#pragma once
#include <chrono>
#include <cstdint>

namespace troupe {

/// The steady clock's reading, for intervals and deadlines.
inline std::int64_t steady_now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
inline double milliseconds_since(std::chrono::steady_clock::time_point start) { return 1e3 * seconds_since(start); }

}  // namespace troupe
