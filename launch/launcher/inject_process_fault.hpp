#pragma once
#include <chrono>

#include "actors/messages/chaos.hpp"

namespace troupe {

/// Applies a fault of --chaos to this process as a whole: `kill`, `stop` or `slow`. Returns at once, or never. Any
/// thread.
void hurt_this_process(ChaosKind kind, std::chrono::milliseconds lasts);

}  // namespace troupe
