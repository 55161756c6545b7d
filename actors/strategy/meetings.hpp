#pragma once
#include <cstdint>

namespace troupe {

/// Capability of a Strategy whose ranks train by themselves and meet now and then, after the optimizer.
/// Collective, between steps. Compute's thread.
class Meetings {
 public:
  /// After a rejoin and its heal, with the newcomers: the meetings that are due after `done` steps and were interrupted
  /// on all ranks. The next step would be too late, and after a run's last step there is none.
  virtual void meet(std::int64_t done) = 0;
  /// Before the job changes to another strategy: completes the work under way.
  virtual void finish_pending() = 0;

 protected:
  ~Meetings() = default;
};

}  // namespace troupe
