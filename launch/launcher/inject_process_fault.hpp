#pragma once
#include <chrono>

#include "actors/messages/chaos.hpp"

namespace troupe {

/// Does to this process, as a whole, what --chaos asks for: `kill`, `stop` and `slow`. Returns at once, or never. Any
/// thread.
void hurt_this_process(ChaosKind kind, std::chrono::milliseconds lasts);

}  // namespace troupe
