#include "actors/coordinator/coordinator_rendezvous.hpp"

#include <algorithm>
#include <thread>

namespace troupe {

void CoordinatorRendezvous::put(const std::string& key, std::string value) {
  std::lock_guard lock(mutex_);
  if (aborted_ && aborted_->code == ErrorCode::fenced) return;  // as silent as the dead
  tell(prefix_ + key, value);
  mine_[prefix_ + key] = std::move(value);
}

void CoordinatorRendezvous::tell(const std::string& key, const std::string& value) const {
  caf::send_as(supervisor_, link_->get(), PutValue{key, value});
}

std::string CoordinatorRendezvous::get(const std::string& key, std::chrono::milliseconds timeout) {
  using namespace std::chrono_literals;
  caf::scoped_actor self(system_);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (auto pause = 1ms;; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
    throw_if_aborted("rendezvous for '" + key + "'");
    const auto coordinator = link_->get();
    {
      std::lock_guard lock(mutex_);
      if (const auto joins = link_->joins(); joins != told_) {
        for (const auto& [name, text] : mine_) tell(name, text);
        told_ = joins;
      }
    }
    std::optional<std::string> value;
    std::string failure;
    self->request(coordinator, std::min(timeout, std::chrono::milliseconds(2000)), GetValue{prefix_ + key})
        .receive(
            [&](bool there, std::string& text) {
              if (there) value = std::move(text);
            },
            [&](caf::error& error) { failure = caf::to_string(error); });
    if (value) return std::move(*value);
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(ErrorCode::timeout, "rendezvous for '" + key + "'",
                  failure.empty() ? "no rank published it within " + std::to_string(timeout.count()) + " ms"
                                  : "the coordinator did not answer: " + failure,
                  "check that every rank is running");
    }
    std::this_thread::sleep_for(pause);
  }
}

void CoordinatorRendezvous::throw_if_aborted(const std::string& operation) {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw Error({.code = ErrorCode::aborted, .operation = operation, .cause = aborted_->to_string()});
}

void CoordinatorRendezvous::abort(const ErrorReport& reason) noexcept {
  std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = reason;
}

}  // namespace troupe
