#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

namespace troupe {

/// Decides which signals ask for an end, and which for one at once. `timeout` and Slurm send the same signal to a
/// process and to its group: twice within a second it is one request. Any thread; safe in a signal handler.
class StopRequest {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Meaning {
    finish,   ///< the first: finish the step and save
    same,     ///< the first once more
    at_once,  ///< another signal, or the same one later
  };

  Meaning add(int number, Clock::time_point now) noexcept {
    const auto at = std::chrono::nanoseconds(now.time_since_epoch()).count();
    int first = 0;
    if (first_.compare_exchange_strong(first, number)) {
      at_ = at;
      return Meaning::finish;
    }
    return number == first && at - at_ < kOneRequest.count() ? Meaning::same : Meaning::at_once;
  }

 private:
  static constexpr std::chrono::nanoseconds kOneRequest = std::chrono::seconds(1);
  std::atomic<int> first_{0};
  std::atomic<std::int64_t> at_{std::numeric_limits<std::int64_t>::max()};  // until the first one's time is known
};

}  // namespace troupe
