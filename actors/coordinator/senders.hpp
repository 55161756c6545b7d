#pragma once
#include <caf/all.hpp>

#include <functional>
#include <string>
#include <string_view>

#include "actors/coordinator/process_table.hpp"
#include "actors/coordinator/rendezvous_store.hpp"
#include "actors/coordinator/slot_table.hpp"

namespace troupe {

/// Checks the senders of messages (SECURITY.md has the table). A message from a wrong sender is dropped, counted, and
/// logged the first, second, fourth, ... time. `from`: its sender. One thread; the tables and the log outlive it.
class Senders {
 public:
  using Sender = caf::strong_actor_ptr;
  using Log = std::function<void(const std::string&)>;
  Senders(const ProcessTable& processes, const SlotTable& slots, const Log& log)
      : processes_(processes), slots_(slots), log_(log) {}

  /// A message of a process about itself must come from it. Messages of a process that has not joined are dropped.
  template <class Message>
  bool may_say(const Message& message, const Sender& from) {
    return is_process(message.process, name_of_struct<Message>(), from);
  }
  bool may_say(const CollectiveState& state, const Sender& from);  ///< of the process that has this rank
  /// About a process, from its host's agent; if there is none, from the launcher.
  bool may_say(const RankExited& exit, const Sender& from) { return is_agent(exit.process, "RankExited", from); }
  bool may_say(const LeaveNotice& notice, const Sender& from) { return is_agent(notice.process, "LeaveNotice", from); }
  bool may_say(const Membership& known, const Sender& from);  ///< of a member
  /// Keeps a value of a process that has joined.
  void put(PutValue value, const Sender& from, RendezvousStore& values);

 private:
  bool is_process(const ProcessId& process, std::string_view message, const Sender& from);
  bool is_agent(const ProcessId& process, std::string_view message, const Sender& from);
  bool drop(const std::string& message);

  const ProcessTable& processes_;
  const SlotTable& slots_;
  const Log& log_;
  std::uint64_t dropped_ = 0;
};

}  // namespace troupe
