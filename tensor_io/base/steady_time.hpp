#pragma once
#include <chrono>
#include <cstdint>

namespace troupe {

/// The steady clock's reading: what intervals and deadlines are measured by.
inline std::int64_t steady_now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace troupe
