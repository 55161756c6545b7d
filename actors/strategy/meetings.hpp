#pragma once
#include <cstdint>

namespace troupe {

/// Capability of a Strategy whose ranks train by themselves and meet now and then, after the optimizer.
/// Collective, between steps. Compute's thread.
class Meetings {
 public:
  /// After a rejoin and its heal, with the newcomers: the meetings that `done` steps make due, which were interrupted
  /// on all ranks. The next step would bring them too late, and after a run's last step there is none.
  virtual void meet(std::int64_t done) = 0;
  /// Before the job goes over to another strategy: what is under way is brought to its end.
  virtual void finish_pending() = 0;

 protected:
  ~Meetings() = default;
};

}  // namespace troupe
