// A coordinator that takes over: what the journal does not have, and who came back.
#include "actors/coordinator/coordinator.hpp"

namespace troupe {

void write_down(const Membership& next, const CoordinatorOptions& options) {
  try {
    if (options.record) options.record(next);
  } catch (const Error& error) {
    options.log("warning: generation " + std::to_string(next.generation) +
                " could not be written to the journal; the job goes on without it (" + error.report().to_string() +
                ")");
  }
}

void take_over(CoordinatorState& state, const Membership& known) {
  if (!state.senders.may_say(known, state.self->current_sender())) return;
  if (state.phase == CoordinatorState::Phase::over || !state.resumption.is_news(known, state.processes.current()))
    return state.filter.count_stale();
  state.options.log("the coordinator takes over at generation " + std::to_string(known.generation) +
                    ", as reported by a rank");
  write_down(known, state.options);
  std::vector<int> before;  // that held a part in a generation which is over
  for (const auto& [slot, process] : state.processes.all()) {
    const bool knew_older = process.joined.generation > 0 && process.joined.generation < known.generation;
    if (process.is_active() && (process.member || knew_older)) before.push_back(slot);
  }
  state.interruption.end();
  state.processes.make_current(known);
  state.resumption.begin(state.now() + state.options.recovery.fence_after + state.options.comes_back_late);
  state.enter(CoordinatorState::Phase::training);
  for (const auto& [slot, process] : state.processes.all()) {
    if (process.member) state.tell_again(process.joined, process.supervisor);
  }
  for (const int slot : before) {
    if (!state.processes.in_slot(slot)->member)
      state.fence(slot, "generation " + std::to_string(known.generation) + " goes on without it");
  }
}

std::optional<std::size_t> settle_resumption(CoordinatorState& state) {
  if (state.resumption.awaits(state.processes)) return std::nullopt;
  const auto missing = state.resumption.settle(state.processes, state.now());
  if (!missing) return std::nullopt;
  for (const auto& [member, dead] : *missing) {
    const int slot = member.process.slot;
    state.slots.set_host(slot, member.host);
    state.send(state.saves.lost(member.process, "it did not come back", state.processes));
    if (!dead) {
      // It stands still, perhaps with an order of the coordinator before: it must not wake up and do it.
      state.unproved.push_back(member.process);
      state.kill(member.process, member.host, "it did not come back to the restarted coordinator");
    } else if (!state.slots.is_starting(slot) && state.processes.in_slot(slot) == nullptr) {
      state.replace(slot);
    }
  }
  return missing->size();
}

}  // namespace troupe
