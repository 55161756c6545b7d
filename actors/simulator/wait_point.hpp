#pragma once
#include <caf/all.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "actors/simulator/world.hpp"

namespace troupe::simulator {

/// An action of the rank lasts until now.
struct Continue {
  std::uint64_t turn = 0;
};

/// The point at which a rank's model stands: the event that it waits for, with a deadline, and a continuation that runs
/// after a delay. A new event or continuation replaces the last one. On the rank's actor.
class WaitPoint {
 public:
  WaitPoint(caf::event_based_actor* self, const World& world) : self_(self), world_(world) {}
  void wait(std::string what, std::chrono::nanoseconds limit);
  /// The event has come. A continuation stays.
  void came() { what_.clear(); }
  /// Calls `then` after `delay`. The rank waits for no event from then on.
  void after(std::chrono::nanoseconds delay, std::function<void()> then);
  void take(const Continue& message);
  void give_up();

  /// Empty if the rank computes.
  const std::string& what() const noexcept { return what_; }
  Time deadline() const noexcept { return deadline_; }

 private:
  caf::event_based_actor* self_;
  const World& world_;
  std::string what_;
  Time deadline_{};
  std::uint64_t turn_ = 0;  // of continuations: those of an earlier one are void
  std::function<void()> continuation_;
};

}  // namespace troupe::simulator

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::simulator::Continue)
