#pragma once
#include <cstdint>
#include <functional>

namespace troupe {

/// The part of a step's batch that a rank trains on next, if ranks take parts on demand.
struct Share {
  std::int64_t micro_batch = 0;  ///< of shares_per_rank
  int index = 0;                 ///< 0 .. world_size - 1
};

/// Capability of a Strategy whose ranks take parts of a step's batch on demand, not equally many. Compute's
/// thread.
class DemandShares {
 public:
  /// The number of shares of a step's batch for each rank, above 0. begin_backward, autograd, end_backward and
  /// end_share come for each share. The rest of a step comes after this rank's last one (reduce_gradients, the vote and
  /// so on). Every rank does at least one: its first is {0, rank}.
  virtual std::int64_t shares_per_rank() const = 0;
  virtual Share next_share() const = 0;
  /// Forward of a step's first share comes next, if the loop calls this: before begin_step, perhaps more than once,
  /// perhaps never.
  virtual void begin_forward(std::int64_t step) = 0;
  /// A share's backward is over. May wait for other ranks, and change parameters as the optimizer does: `update`
  /// applies the gradients that the parameters have now. roll_back, and end_step without commit, undo that. True: this
  /// rank has another share of the step.
  virtual bool end_share(const std::function<void()>& update) = 0;

 protected:
  ~DemandShares() = default;
};

}  // namespace troupe
