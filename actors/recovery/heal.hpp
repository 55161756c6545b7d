#pragma once
#include <cstdint>
#include <vector>

#include "actors/messages/membership.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// Who gives state and who gets it, by rank.
struct HealRoles {
  int first_donor = -1;
  std::vector<bool> newcomer;
  bool first_alone = false;  ///< the others have other values: first_donor gives all
};

/// Newcomers get it, the others give, or the first of them.
/// `among`: of these ranks, who are numbered by their place in the list then; empty: of all.
HealRoles heal_roles(const Membership& membership, bool first_alone = false, const std::vector<int>& among = {});

/// XXH3-64 over the tensors' bytes, in their order.
std::uint64_t hash_tensors(const NamedTensors& tensors);

/// The values of those that have them to the newcomers, in place. Collective; all pass the same names and shapes.
/// Pieces of 1 MiB come from the donors in turn, so that no one's link is the limit. Before that the donors compare
/// hashes (XXH3-64), after it the newcomers theirs: Error(mismatch) names the rank that differs.
void heal_tensors(const NamedTensors& tensors, const HealRoles& roles, Communicator& communicator, const char* what);

}  // namespace troupe
