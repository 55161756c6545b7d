#pragma once
#include <set>

#include "actors/coordinator/process_table.hpp"

namespace troupe {

/// The end of a generation: its reason, and the members that have not left it yet. A value; sends nothing.
class Interruption {
 public:
  /// `parted`: members leave. A rank stands between two steps, and the others come to the same place by themselves.
  /// Only a fault on the way makes another interruption of it. Without `parted` all give up.
  RankMessages begin(const ErrorReport& reason, bool parted, const ProcessTable& processes) {
    reason_ = reason;
    parting_ = parted;
    unheard_.clear();
    RankMessages messages;
    for (const auto& [slot, process] : processes.all()) {
      if (!process.member || process.ended) continue;
      if (!process.interrupted) unheard_.insert(slot);
      if (!parting_) messages.push_back(message_to(process, processes));
    }
    return messages;
  }
  /// A member is there over another connection: messages over the one before may be lost.
  RankMessages came_back(int slot, const ProcessTable& processes) {
    unheard_.insert(slot);
    return parting_ ? RankMessages() : RankMessages{message_to(*processes.in_slot(slot), processes)};
  }
  /// It has left the generation, or is gone.
  void heard(int slot) { unheard_.erase(slot); }
  bool all_heard() const noexcept { return unheard_.empty(); }
  bool parting() const noexcept { return parting_; }
  /// The next generation begins. Returns whether members of the one before leave.
  bool end() {
    unheard_.clear();
    return std::exchange(parting_, false);
  }

 private:
  RankMessages::value_type message_to(const JoinedProcess& process, const ProcessTable& processes) const {
    return {process.supervisor, InterruptRanks{processes.current().generation, reason_}};
  }

  ErrorReport reason_;
  bool parting_ = false;
  std::set<int> unheard_;  // slots
};

}  // namespace troupe
