#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "tensor_io/base/registry.hpp"

namespace troupe {

/// The candidate that differs from `name` least, or an empty string if none is near. A letter too much, too few or
/// wrong, and two neighbours that changed places, count as one difference (optimal string alignment). Allowed are a
/// third of the name's letters, two in a short one, and at most `most`.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates, std::size_t most = 64);
/// The remedy for an unknown name: `did you mean fsdp? known: ddp, fsdp`.
std::string remedy_for_name(const std::string& name, const std::vector<RegisteredName>& known);

}  // namespace troupe
