#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages/membership.hpp"

namespace troupe {

/// The ranks that vote on steps together, in one generation, and where they go on. A value: a job may have several, and
/// a process that dies touches those that it is in.
struct StepGroup {
  std::uint64_t generation = 0;
  std::vector<ProcessId> ranks;
  std::vector<bool> newcomers;   ///< by rank
  std::int64_t resume_step = 0;  ///< the step that runs next
  std::int32_t tasks_done = 0;   ///< of what comes before it
  std::string votes;             ///< of step resume_step - 1, if anybody saw them

  static StepGroup of(const Membership& membership);
  int rank_of(const ProcessId& process) const noexcept;  ///< -1: it is not in it
  bool has_newcomers() const noexcept;
};

}  // namespace troupe
