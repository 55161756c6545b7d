#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layout/bucket_plan.hpp"

namespace troupe {

/// The order in which gradients arrive, as rank 0 measures it in backward. When it differs from the plan's order, the
/// vote decides that all ranks take it over (as PyTorch's DDP rebuilds its buckets, Li et al., VLDB 2020). Compute's
/// thread.
class MeasuredOrder {
 public:
  using Order = std::vector<std::int32_t>;

  /// After a backward, on rank 0. `differs`: from the plan's order. Returns whether the ranks should take it over. Once
  /// one was taken over, only an order that repeats is worth a change: a model that alternates would change for ever.
  bool arrived(Order order, bool differs) {
    const bool change = differs && (!measured_ || order == last_);
    last_ = std::move(order);
    return change;
  }

  /// The vote's decision; it is carried out by `take_over`.
  void decide(bool change) noexcept { due_ = change; }
  /// After the update: rank 0's order, if it was decided to take it over. Collective in that case.
  std::optional<Order> take_over(Communicator& communicator, const char* label) {
    if (!std::exchange(due_, false)) return std::nullopt;
    measured_ = true;
    return order_of_text(communicator.broadcast_bytes(order_text(last_), 0, label));
  }

  /// Whether the plan follows a measured order.
  bool measured() const noexcept { return measured_; }
  void set_measured(bool measured) noexcept { measured_ = measured; }

 private:
  Order last_;
  bool measured_ = false, due_ = false;
};

}  // namespace troupe
