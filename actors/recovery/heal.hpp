#pragma once
#include <cstdint>
#include <vector>

#include "actors/messages/membership.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// The ranks that give state and those that get it.
struct HealRoles {
  int first_donor = -1;
  std::vector<bool> newcomer;
  bool first_alone = false;  ///< the others have other values: first_donor gives everything
};

/// Newcomers get the state; the others give it, or only the first of them. `among`: these ranks, numbered by their
/// place in the list; empty: all.
HealRoles heal_roles(const Membership& membership, bool first_alone = false, const std::vector<int>& among = {});

/// XXH3-64 over the tensors' bytes, in their order.
std::uint64_t hash_tensors(const NamedTensors& tensors);

/// Sends the values of the ranks that have them to the newcomers, in place. Collective; all pass the same names and
/// shapes. The donors take turns with pieces of 1 MiB, so that no rank's link is the limit. Before that the donors
/// compare hashes (XXH3-64), after it the newcomers compare theirs: Error(mismatch) names the rank that differs.
void heal_tensors(const NamedTensors& tensors, const HealRoles& roles, Communicator& communicator, const char* what);

}  // namespace troupe
