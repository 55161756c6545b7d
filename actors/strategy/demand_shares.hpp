#pragma once
#include <cstdint>
#include <functional>

namespace troupe {

/// Of a step's batch, where ranks take its parts by demand: the part that a rank trains on next.
struct Share {
  std::int64_t micro_batch = 0;  ///< of shares_per_rank
  int index = 0;                 ///< 0 .. world_size - 1
};

/// Capability of a Strategy whose ranks take a step's batch by demand, and need not do equally much of it. Compute's
/// thread.
class DemandShares {
 public:
  /// A step's batch is cut into so many shares for each rank, above 0. begin_backward, autograd, end_backward and
  /// end_share come for each share, and the rest of a step (reduce_gradients, the vote and so on) after this rank's
  /// last one. Every rank does one at least: its first is {0, rank}.
  virtual std::int64_t shares_per_rank() const = 0;
  virtual Share next_share() const = 0;
  /// Forward of a step's first share comes next, as far as the loop says so: before begin_step, perhaps more than
  /// once, perhaps never.
  virtual void begin_forward(std::int64_t step) = 0;
  /// A share's backward is over. May wait for other ranks, and change parameters as the optimizer does: `update`
  /// applies the gradients that the parameters have now. roll_back, and end_step without commit, undo that. True: this
  /// rank has another share of the step.
  virtual bool end_share(const std::function<void()>& update) = 0;

 protected:
  ~DemandShares() = default;
};

}  // namespace troupe
