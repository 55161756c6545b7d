// Coordinator and processes that leave on notice, while the others go on.
#include "actors/coordinator/coordinator.hpp"
#include "actors/messages/message_limits.hpp"

namespace troupe {

void take_notice(CoordinatorState& state, const LeaveNotice& notice) {
  if (state.phase == CoordinatorState::Phase::over || state.filter.is_nonsense(problem_with(notice)) ||
      !state.notices.add(notice, state.now()))
    return;
  const int slot = notice.process.slot;
  const bool member = state.processes.member_rank(notice.process) >= 0;
  state.options.log((member ? "rank " + std::to_string(state.processes.rank_of(slot))
                            : "the process in slot " + std::to_string(slot)) +
                    " is to leave (" + notice.why + ")");
  if (state.phase == CoordinatorState::Phase::forming && state.options.life == 0) state.slots.set_absent(slot);
}

JobOver end_of_all(const CoordinatorState& state, const ErrorReport& last) {
  const bool stopped = last.code == ErrorCode::interrupted && state.notices.concern(state.processes.current());
  if (!stopped) return {{.code = ErrorCode::ok, .cause = "the job is done"}, 0};
  ErrorReport report{.code = ErrorCode::parked,
                     .cause = "a host's ranks were to leave, and the others can't go on without them",
                     .remedy = "start again with --resume auto, on as many ranks as before"};
  return {report, exit_code(report.code)};
}

// Ten times a second: an answer may be lost with its connection.
void let_leave(CoordinatorState& state) {
  if (!state.options.recovery.enabled) return;
  if (state.phase == CoordinatorState::Phase::training) state.send(state.notices.ask(state.processes));
  state.send(state.notices.let_go(state.processes, state.saves, state.now()));
}

}  // namespace troupe
