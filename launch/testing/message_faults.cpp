#include "launch/testing/message_faults.hpp"

namespace troupe::testing {
namespace {

bool is_rank(std::optional<Rank> wanted, std::optional<int> rank) {
  return !wanted || (rank && *rank == wanted->number);
}

}  // namespace

MessageFaults::MessageFaults(const std::vector<ClusterFault>& faults) {
  for (std::size_t i = 0; i < faults.size(); ++i) {
    if (faults[i].hits_message()) planned_.push_back({i, faults[i].message, !faults[i].message.after});
  }
}

void MessageFaults::begin(std::size_t number) {
  for (auto& planned : planned_) planned.counts = planned.counts || planned.number == number;
}

// All count a message that they choose, and the first whose turn it is hits it.
std::optional<std::size_t> MessageFaults::hit(std::optional<int> from, std::optional<int> to, const std::string& type) {
  std::optional<std::size_t> found;
  for (auto& planned : planned_) {
    const auto& wanted = planned.message;
    if (!planned.counts || !is_rank(wanted.from, from) || !is_rank(wanted.to, to)) continue;
    if (!wanted.type.empty() && wanted.type != type) continue;
    if (planned.seen++ == wanted.nth && !found) found = planned.number;
  }
  return found;
}

}  // namespace troupe::testing
