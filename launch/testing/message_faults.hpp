#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launch/testing/cluster_fault.hpp"

namespace troupe::testing {

/// Counts the messages that each fault chooses, and decides which is hit. A pure value, for one thread at a time.
class MessageFaults {
 public:
  /// Those of `faults` that hit messages; the others only take numbers.
  explicit MessageFaults(const std::vector<ClusterFault>& faults);

  bool empty() const noexcept { return planned_.empty(); }
  /// The place of Message::after of the fault with this number in `faults` is there.
  void begin(std::size_t number);
  /// The number of the fault that hits this message. `from`, `to`: empty if that end is no rank.
  std::optional<std::size_t> hit(std::optional<int> from, std::optional<int> to, const std::string& type);

 private:
  struct Planned {
    std::size_t number;
    Message message;
    bool counts;
    int seen = 0;
  };
  std::vector<Planned> planned_;
};

}  // namespace troupe::testing
