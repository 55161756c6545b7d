#pragma once
// What lets replicas that train apart meet. Includes nothing of Troupe.
#include <cstdint>
#include <vector>

#include "tests/differential/replica.hpp"

namespace troupe::differential {

class StepsApart {
 public:
  virtual ~StepsApart() = default;
  /// Goes on as a run does that resumes after `done` steps; `saved`: what its checkpoint is of, or nothing.
  virtual void resume(std::int64_t /*done*/, const StepsApart* /*saved*/) {}
  /// Also after a step that was skipped.
  virtual void after_step(std::int64_t done, std::vector<Replica>& replicas) = 0;
  /// False: a replica does not wait for others after a step.
  virtual bool waits() const { return true; }
  /// Whether replicas meet right after step `done`.
  virtual bool is_due(std::int64_t /*done*/) const { return false; }
  /// What is under way is lost.
  virtual void interrupt() = 0;
  /// They train apart no longer.
  virtual void end(std::vector<Replica>& /*replicas*/) {}
};

}  // namespace troupe::differential
