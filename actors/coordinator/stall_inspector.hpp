#pragma once
#include <map>
#include <optional>

#include "actors/messages/messages.hpp"

namespace troupe {

/// Collects the places of a generation's ranks on their communicators, and finds the rank that keeps the others
/// waiting. A value; sends nothing.
class StallInspector {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Takes a rank's report. True: the other ranks are to be asked about this communicator.
  bool report(const CollectiveState& state, Time now);
  /// The rank at fault, if the reports prove one (diagnose). It looks at communicators with new reports only.
  std::optional<ErrorReport> judge(std::size_t ranks);
  void clear() { communicators_.clear(); }
  /// The most reports that any communicator has.
  std::size_t most_reports() const noexcept;

 private:
  struct OneOf {
    std::map<int, CollectiveState> states;  // by rank: the newest
    std::uint64_t asked = 0;                // all have been asked about the collective of this number
    Time asked_at;
    bool news = false;  // since it was last judged
  };
  std::map<std::string, OneOf> communicators_;  // by name
};

}  // namespace troupe
