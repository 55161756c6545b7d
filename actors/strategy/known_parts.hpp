#pragma once
#include <vector>

#include "tensor_io/base/registry.hpp"

namespace troupe {

/// The strategies and communication hooks that are registered now, in alphabetical order.
std::vector<RegisteredName> known_strategies();
std::vector<RegisteredName> known_comm_hooks();

}  // namespace troupe
