// Coordinator and processes that leave on notice, while the others go on.
#include <algorithm>

#include "actors/coordinator/coordinator.hpp"
#include "actors/messages/message_limits.hpp"

namespace troupe {

void take_notice(CoordinatorState& state, const LeaveNotice& notice, bool drill) {
  if (state.phase == CoordinatorState::Phase::over || state.filter.is_nonsense(problem_with(notice)) ||
      !state.notices.add(notice, drill))
    return;
  const int slot = notice.process.slot;
  const bool member = state.processes.member_rank(notice.process) >= 0;
  state.options.log((member ? "rank " + std::to_string(state.processes.rank_of(slot))
                            : "the process in slot " + std::to_string(slot)) +
                    " is to leave (" + notice.why + ")");
  state.slots.set_starting(slot, false);
  const bool awaited = slot < state.options.world_size && state.options.life == 0;  // and no spare
  if (state.phase == CoordinatorState::Phase::forming && awaited) state.slots.set_absent(slot);
}

JobOver end_of_all(const CoordinatorState& state, const ErrorReport& last) {
  const auto& members = state.processes.current().members;
  const bool asked = std::any_of(members.begin(), members.end(), [&](const Member& member) {
    const auto* process = state.processes.find(member.process);
    return process != nullptr && process->ended && process->ended->cause == kAskedToStop;
  });
  if (last.code != ErrorCode::interrupted || asked || !state.notices.concern(state.processes.current()))
    return {{.code = ErrorCode::ok, .cause = "the job is done"}, 0};
  ErrorReport report{.code = ErrorCode::parked,
                     .cause = "a host's ranks had to leave, and the others can't go on without them",
                     .remedy = "start again with --resume auto, on as many ranks as before"};
  return {report, exit_code(report.code)};
}

void let_go(CoordinatorState& state, const ProcessId& process) {
  auto& known = *state.processes.find(process);
  known.ended = state.notices.reason(process);
  state.self->send(known.supervisor, AbortJob{*known.ended});
  state.send(state.saves.lost(process, "it has left", state.processes));
}

// Ten times a second: an answer may be lost with its connection.
void let_leave(CoordinatorState& state) {
  if (!state.options.recovery.enabled) return;
  if (state.phase == CoordinatorState::Phase::training) state.send(state.notices.ask(state.processes));
  for (const auto& process :
       state.notices.due(state.processes, state.saves, state.now(), state.options.recovery.leaver_saves))
    let_go(state, process);
  // One hangs behind the vote: the others stand between two steps already.
  if (state.interruption.parting() && state.now() - state.since > state.options.recovery.hang_after)
    state.recover(
        {.code = ErrorCode::timeout, .cause = "a rank did not finish the step after which other ranks leave"});
}

}  // namespace troupe
