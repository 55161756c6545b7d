#include "actors/coordinator/senders.hpp"

#include <bit>
#include <utility>

namespace troupe {

bool Senders::may_say(const CollectiveState& state, const Sender& from) {
  const auto& members = processes_.current().members;
  if (state.generation != processes_.current().generation || state.rank < 0) return true;  // it comes to nothing
  const auto* process = state.rank < std::ssize(members) ? processes_.find(members[state.rank].process) : nullptr;
  return (process != nullptr && process->supervisor == from) ||
         drop("a CollectiveState of rank " + std::to_string(state.rank) + ", from another process");
}

bool Senders::is_agent(const ProcessId& process, std::string_view message, const Sender& from) {
  auto host = slots_.host_of(process.slot);
  for (const auto& member : processes_.current().members) {
    if (host.empty() && member.process.slot == process.slot) host = member.host;
  }
  auto agent = slots_.agent_on(host);
  if (!agent) agent = slots_.agent_on(kLauncher);
  return (agent && agent == from) ||
         drop("a " + std::string(message) + " of slot " + std::to_string(process.slot) + ", not from its host's agent");
}

bool Senders::may_say(const Membership& known, const Sender& from) {
  const auto slot = processes_.slot_of(from);
  return (slot && known.rank_of(processes_.in_slot(*slot)->joined.process) >= 0) ||
         drop("a Membership of a process that is not in it");
}

void Senders::put(PutValue value, const Sender& from, RendezvousStore& values) {
  const auto slot = processes_.slot_of(from);
  const auto why = slot ? values.put(*slot, std::move(value)) : "a PutValue of a process that has not joined";
  if (!why.empty()) drop(why);
}

bool Senders::is_process(const ProcessId& process, std::string_view message, const Sender& from) {
  const auto* known = processes_.find(process);
  return known == nullptr || known->supervisor == from ||
         drop("a " + std::string(message) + " in the name of slot " + std::to_string(process.slot) +
              ", from another process");
}

bool Senders::drop(const std::string& message) {
  if (std::has_single_bit(++dropped_) && log_)
    log_("dropped " + message + (dropped_ > 1 ? " (" + std::to_string(dropped_) + " such messages so far)" : ""));
  return false;
}

}  // namespace troupe
