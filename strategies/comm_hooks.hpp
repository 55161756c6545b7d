#pragma once
#include "actors/comm_hook.hpp"

namespace troupe {

/// Makes none, fp16 and bf16 known to make_comm_hook.
void register_comm_hooks();

}  // namespace troupe
