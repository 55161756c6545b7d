#include "actors/simulator/wait_point.hpp"

#include <utility>

namespace troupe::simulator {

void WaitPoint::wait(std::string what, std::chrono::nanoseconds limit) {
  what_ = std::move(what);
  deadline_ = world_.now() + limit;
}

void WaitPoint::after(std::chrono::nanoseconds delay, std::function<void()> then) {
  ++turn_;
  continuation_ = std::move(then);
  self_->delayed_send(self_, delay, Continue{turn_});
}

void WaitPoint::take(const Continue& message) {
  if (message.turn != turn_ || !continuation_) return;
  auto then = std::exchange(continuation_, nullptr);
  came();
  then();
}

void WaitPoint::give_up() {
  ++turn_;
  continuation_ = nullptr;
  came();
}

}  // namespace troupe::simulator
