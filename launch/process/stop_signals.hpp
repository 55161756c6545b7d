#pragma once
#include <optional>
#include <string>

#include "launch/process/stop_request.hpp"

namespace troupe {

/// Those of SIGINT, SIGTERM and SIGHUP that were not ignored when the program started (nohup, background jobs), and
/// SIGCHLD, as a file to poll. Make it before any thread: threads inherit the blocked signals.
class StopSignals {
 public:
  /// A request to stop; signal 0: none.
  struct Request {
    int signal = 0;
    bool at_once = false;
    bool by_time = false;  ///< no signal: the time is over
  };

  /// `stop_at`: then there is a request as if by SIGTERM, once.
  explicit StopSignals(std::optional<StopRequest::Clock::time_point> stop_at = {});
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  int fd() const noexcept { return fd_; }
  /// The next request of a signal; the same one twice within a second is one.
  Request take();

 private:
  Request judge(int number);
  StopRequest request_;
  std::optional<StopRequest::Clock::time_point> stop_at_;
  int fd_ = -1;
};

/// Whether this process was started with the signal ignored.
bool is_ignored(int number);

/// SIGTERM for 15.
std::string signal_name(int number);

/// The time after which a job with `left` to go is asked to stop, so that it has saved before: 2 minutes before the
/// end, or a fifth of the time if that is less.
std::chrono::milliseconds time_to_stop(std::chrono::milliseconds left);

/// Lines on standard error: the effect of a first request and how to stop at once, and that a second one has done so.
void say_stopping(const StopSignals::Request& request);
void say_leaving(int number);
void say_ended_at_once(int number);

}  // namespace troupe
