#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// How often a dead process is started again.
struct RestartLimits {
  int most = 3;          ///< deaths of one slot within `window`
  int most_of_host = 4;  ///< failures of one host
  std::chrono::milliseconds window{600'000};
  std::chrono::milliseconds one_event{5'000};  ///< deaths on one host that come so close together have one cause
};

struct RestartDecision {
  bool start = true;
  std::chrono::milliseconds wait{0};  ///< if not `start`: until it may be
  std::string reason;                 ///< if not `start`
};

/// Whether a slot may be started again. `slot_deaths`, `host_deaths` (of all slots of its host): how long ago each was,
/// in any order. A slot that dies too often waits until its oldest death is out of the window. So does each slot of a
/// host that keeps failing. A pure function.
RestartDecision may_restart(std::span<const std::chrono::milliseconds> slot_deaths,
                            std::span<const std::chrono::milliseconds> host_deaths, const RestartLimits& limits);

/// How a life of a slot ended.
struct LifeEnd {
  std::string cause;            ///< the program's fault: "signal 11", "exit code 3", "a hang"; empty: not its doing
  std::int64_t steps_made = 0;  ///< in this life, as far as was heard
};

/// Whether two successive lives of a slot ended by the same fault of the program, so that another would, too. They
/// ended by the same cause, and at once or after equally many steps. A pure function.
bool is_program_fault(const LifeEnd& before, const LifeEnd& now);

}  // namespace troupe
