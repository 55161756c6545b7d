#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace troupe {

/// Messages that the coordinator drops: it counts them, and the user hears of the first that no rank may send.
class MessageFilter {
 public:
  MessageFilter() = default;
  explicit MessageFilter(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  /// Whether there is a problem with the message, so that no rank of this version has sent it. Logs the first.
  bool is_nonsense(const std::string& problem) {
    if (problem.empty()) return false;
    if (!std::exchange(has_nonsense_, true)) log_("dropped an invalid message: " + problem);
    return true;
  }
  /// Whether the message is of another generation. One of a generation that is over is usual after a change of
  /// membership. Of those that never were it logs the first in each generation. `what` names the message.
  bool is_stale(std::uint64_t generation, std::uint64_t current, const char* what) {
    if (generation == current) return false;
    ++stale_;
    if (generation > current && std::exchange(logged_in_, current) != current)
      log_("dropped a " + std::string(what) + " of generation " + std::to_string(generation) + ", the current one is " +
           std::to_string(current) + " (" + std::to_string(stale_) + " such messages so far)");
    return true;
  }
  /// Counts a message that came too late, or from a process that the job has given up.
  void count_stale() noexcept { ++stale_; }
  std::int64_t stale() const noexcept { return stale_; }

 private:
  std::function<void(const std::string&)> log_;
  std::int64_t stale_ = 0;
  std::uint64_t logged_in_ = 0;  // the last generation in which a stale message was logged
  bool has_nonsense_ = false;
};

}  // namespace troupe
