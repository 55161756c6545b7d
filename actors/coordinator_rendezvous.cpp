#include "actors/coordinator_rendezvous.hpp"

#include <algorithm>
#include <thread>

namespace troupe {

void CoordinatorRendezvous::put(const std::string& key, std::string value) {
  caf::anon_send(coordinator_, PutValue{key, std::move(value)});
}

std::string CoordinatorRendezvous::get(const std::string& key, std::chrono::milliseconds timeout) {
  using namespace std::chrono_literals;
  caf::scoped_actor self(system_);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (auto pause = 1ms;; pause = std::min(pause * 2, std::chrono::milliseconds(20))) {
    {
      std::lock_guard lock(mutex_);
      if (aborted_) throw Error(ErrorReport{ErrorCode::aborted, -1, {}, -1, "rendezvous for '" + key + "'", aborted_->to_string(), {}});
    }
    std::optional<std::string> value;
    std::string failure;
    self->request(coordinator_, timeout, GetValue{key})
        .receive(
            [&](bool there, std::string& text) {
              if (there) value = std::move(text);
            },
            [&](caf::error& error) { failure = caf::to_string(error); });
    if (value) return std::move(*value);
    if (!failure.empty()) throw Error(ErrorCode::peer_lost, "rendezvous for '" + key + "'", "the coordinator did not answer: " + failure);
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(ErrorCode::timeout, "rendezvous for '" + key + "'",
                  "nobody published it within " + std::to_string(timeout.count()) + " ms", "is every rank running?");
    }
    std::this_thread::sleep_for(pause);
  }
}

void CoordinatorRendezvous::abort(const ErrorReport& reason) noexcept {
  std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = reason;
}

}  // namespace troupe
