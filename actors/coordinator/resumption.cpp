#include "actors/coordinator/resumption.hpp"

#include <algorithm>

namespace troupe {
namespace {

std::pair<std::int32_t, std::uint64_t> key_of(const ProcessId& process) { return {process.slot, process.incarnation}; }

}  // namespace

std::optional<int> Resumption::awaits(const ProcessTable& processes) const {
  for (const auto& [slot, process] : processes.all()) {
    if (process.is_active() && knows_less(process.joined, processes.current())) return slot;
  }
  return std::nullopt;
}

void Resumption::heard_of(const JoinNode& node, const Membership& current) {
  if (!pending_) return;
  for (const auto& member : current.members) {
    if (member.host == node.host &&
        std::find(node.started.begin(), node.started.end(), member.process) == node.started.end())
      dead_.insert(key_of(member.process));
  }
}

void Resumption::exited(const ProcessId& process, const ProcessTable& processes) {
  // Of a membership that is not known yet, perhaps.
  const bool unknown = guesses_ && processes.current().generation == 0;
  if (unknown || (pending_ && processes.member_rank(process) >= 0)) dead_.insert(key_of(process));
}

std::optional<std::vector<Resumption::Missing>> Resumption::settle(const ProcessTable& processes, Time now) {
  std::vector<Missing> missing;
  if (!pending_) return missing;
  for (const auto& member : processes.current().members) {
    // Not its slot: the life that replaces it may have joined already.
    if (processes.find(member.process) != nullptr) continue;
    missing.push_back({member, dead_.contains(key_of(member.process))});
    if (now <= deadline_ && !missing.back().dead) return std::nullopt;
  }
  pending_ = false;
  dead_.clear();
  return missing;
}

}  // namespace troupe
