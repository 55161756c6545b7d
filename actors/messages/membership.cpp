#include "actors/messages/membership.hpp"

#include <algorithm>
#include <random>

namespace troupe {

std::uint64_t random_incarnation() {
  std::random_device random;
  return (std::uint64_t{random()} << 32 | random()) | 1;
}

int Membership::rank_of(const ProcessId& process) const noexcept {
  if (members.empty()) return -1;
  // Mostly a rank is its slot's number, or a little less: each of N ranks looks for itself here, so that to begin at 0
  // would be N^2.
  const int n = world_size();
  const int likely = std::clamp(process.slot, 0, n - 1);
  for (int before = 0; before < n; ++before) {
    const int rank = (likely - before + n) % n;
    if (members[static_cast<std::size_t>(rank)].process == process) return rank;
  }
  return -1;
}

bool Membership::has_newcomers() const noexcept {
  return std::any_of(members.begin(), members.end(), [](const Member& m) { return m.newcomer; });
}

bool Membership::only_adds_to(const Membership& before) const noexcept {
  return members.size() > before.members.size() &&
         std::all_of(before.members.begin(), before.members.end(),
                     [&](const Member& m) { return rank_of(m.process) >= 0; });
}

}  // namespace troupe
