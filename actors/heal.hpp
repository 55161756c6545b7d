#pragma once
#include <vector>

#include "tensor_io/communicator.hpp"
#include "tensor_io/named_state.hpp"

namespace troupe {

/// The values of those that have them to the newcomers, in place. Collective; all pass the same names and shapes. Pieces of 1 MiB come
/// from the donors in turn, so that no one's link is the limit. Before that the donors compare hashes (XXH3-64), after it the newcomers
/// theirs: Error(mismatch) names the rank that differs. `newcomer` by rank.
void heal_tensors(const NamedTensors& tensors, const std::vector<bool>& newcomer, Communicator& lane, const char* what);

}  // namespace troupe
