#pragma once
#include <algorithm>
#include <chrono>

namespace troupe {

/// How long an agent waits for ranks that were asked to stop or to leave: 60 s from the request, or from the last sign
/// that one of them still saves. Not safe for threads.
class StopPatience {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kTime{60};

  void asked(Time now) { end_ = now + kTime; }
  void still_saving(Time now) { end_ = std::max(end_, now + kTime); }
  bool is_over(Time now) const { return now > end_; }

 private:
  Time end_;
};

}  // namespace troupe
