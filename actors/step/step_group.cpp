#include "actors/step/step_group.hpp"

#include <algorithm>

namespace troupe {

StepGroup StepGroup::of(const Membership& membership) {
  StepGroup group{membership.generation, {}, {}, membership.resume_step, membership.tasks_done, membership.votes};
  for (const auto& member : membership.members) {
    group.ranks.push_back(member.process);
    group.newcomers.push_back(member.newcomer);
  }
  return group;
}

int StepGroup::rank_of(const ProcessId& process) const noexcept {
  const auto found = std::find(ranks.begin(), ranks.end(), process);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

bool StepGroup::has_newcomers() const noexcept {
  return std::find(newcomers.begin(), newcomers.end(), true) != newcomers.end();
}

}  // namespace troupe
