#pragma once
#include <caf/all.hpp>

#include <optional>
#include <utility>

#include "actors/messages/messages.hpp"

namespace troupe {

/// Passes the coordinator's messages about saves on to the rank's Checkpointer. Keeps the messages that a restarted
/// coordinator has to get again. The supervisor's thread.
class SaveRelay {
 public:
  void connect(caf::actor checkpointer) { checkpointer_ = std::move(checkpointer); }
  /// Dropped if there is no Checkpointer.
  template <class Message>
  void tell_checkpointer(const Message& message) const {
    if (checkpointer_) caf::anon_send(checkpointer_, message);
  }
  /// Not kept if its save has ended: `part` may be of the next one.
  void part_saved(const PartSaved& part);
  void end(const SaveEnded& ended);
  /// This rank waits no longer for the end of the save whose part it has written, if there is one. The others may still
  /// make a checkpoint of it.
  void fail(const ErrorReport& reason);

  /// This rank's part, until its save has ended.
  const std::optional<PartSaved>& part() const noexcept { return part_; }
  /// The last save that has ended.
  const std::optional<SaveEnded>& ended() const noexcept { return ended_; }

 private:
  caf::actor checkpointer_;
  std::optional<PartSaved> part_;
  std::optional<SaveEnded> ended_;
};

}  // namespace troupe
