#pragma once
#include "actors/rank/comm_hook.hpp"

namespace troupe {

/// Registers the hooks that ship with Troupe for make_comm_hook:
/// - none      the average, in the gradients' own dtype
/// - fp16 bf16 the average of 16-bit numbers: half the bytes. Worth it on a network; on one host the conversion
///   costs more than it saves.
/// - powersgd  a low-rank approximation with error feedback (strategies/hooks/power_sgd.hpp)
void register_comm_hooks();

}  // namespace troupe
