// Coordinator and the agents of the hosts: what they run, which of it ended, what they are to start.
#include <signal.h>
#include <sys/wait.h>

#include "actors/coordinator/coordinator.hpp"
#include "actors/messages/message_limits.hpp"
#include "tensor_io/base/planned_kill.hpp"

namespace troupe {
namespace {

// `ours`: the job has killed it itself, if it was killed.
std::string how(const RankExited& exit, bool ours = false) {
  const auto wait_status = exit.wait_status;
  const bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
  if (killed && !ours && is_kill_planned(exit.process.slot)) return "signal 9; TROUPE_FAULT names its slot";
  if (killed && !ours) return "signal 9, which this job did not send: perhaps out of memory, see dmesg on its host";
  if (WIFSIGNALED(wait_status)) return "signal " + std::to_string(WTERMSIG(wait_status));
  return "exit code " + std::to_string(WEXITSTATUS(wait_status));
}

// What the program did; SIGKILL, SIGTERM and their like come from others.
std::string doing(const RankExited& exit) {
  if (!WIFSIGNALED(exit.wait_status)) return how(exit);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    if (WTERMSIG(exit.wait_status) == own) return how(exit);
  }
  return {};
}

// Of a process that was given up as lost, and is known to be dead only now, when the others have gone on without it.
bool is_late_proof(const CoordinatorState& state, const JoinedProcess& process) {
  using Phase = CoordinatorState::Phase;
  return (state.phase == Phase::training || state.phase == Phase::recovering) && process.ended &&
         process.ended->code == ErrorCode::peer_lost &&
         state.processes.current().world_size() < state.options.world_size &&
         !state.slots.is_starting(process.joined.process.slot);
}

}  // namespace

std::string CoordinatorState::join_node(const JoinNode& node, const caf::strong_actor_ptr& sender) {
  if (filter.is_nonsense(problem_with(node)) || !sender || node.job_id != options.job_id) return "it is another job's";
  const auto agent = caf::actor_cast<NodeAgentActor>(sender);
  if (auto why = slots.refusal(node, agent); !why.empty() || node.only_asks) return why;
  self->monitor(agent);
  slots.set_agent(node.host, agent);
  for (const auto& process : node.started) {
    slots.set_ordered(process, node.host);
    const bool comes_back = resumption.pending() && processes.member_rank(process) >= 0;
    notices.joined(process);
    if (processes.in_slot(process.slot) == nullptr && !comes_back) slots.set_starting(process.slot, true);
  }
  resumption.heard_of(node, processes.current());
  if (phase == Phase::over) self->send(agent, verdict);
  return {};
}

void CoordinatorState::exited(const RankExited& exit) {
  if (filter.is_nonsense(problem_with(exit))) return;
  resumption.exited(exit.process, processes);
  const int slot = exit.process.slot;
  const bool waited_for = std::erase(unproved, exit.process) > 0;
  const auto* process = processes.find(exit.process);
  if (process == nullptr) return exited_before_join(exit);
  if (!process->hurt && !process->fenced && !notices.has(exit.process))
    slots.explain_death(slot, {doing(exit), process->steps_made()});
  const bool refill = notices.ended(exit.process);
  if (!process->ended) return lose(slot, how(exit, process->hurt), true);
  if ((refill || is_late_proof(*this, *process)) && !waited_for) replace(slot);
  if (phase != Phase::recovering) return;
  if (waited_for) {
    options.log("rank " + std::to_string(processes.rank_of(slot)) + " ended with " +
                how(exit, process->fenced || process->hurt));
    replace(slot);
  }
  plan();
}

void CoordinatorState::exited_before_join(const RankExited& exit) {
  const int slot = exit.process.slot;
  slots.set_starting(slot, false);
  const auto* newer = processes.in_slot(slot);
  if (phase == Phase::over || (newer != nullptr && newer->is_active())) return;
  if (notices.has(exit.process)) return plan();
  const int code = WIFEXITED(exit.wait_status) ? WEXITSTATUS(exit.wait_status) : 128 + WTERMSIG(exit.wait_status);
  if (code == 0) return;  // a program that is none of ours
  const auto what = "ended before it joined (" + how(exit) + ")";
  if (phase == Phase::forming && exit.process.incarnation == 0) {  // its host can't be reached
    slots.set_absent(slot);
    plan();
  } else if (phase == Phase::forming && options.life == 0) {
    abort({.code = ErrorCode::unavailable, .rank = slot, .cause = "it " + what}, code);
  } else if (options.recovery.enabled) {
    slots.add_death(slot, now(), {doing(exit), 0});
    options.log("the process in slot " + std::to_string(slot) + " " + what);
    replace(slot);
    plan();
  }
}

void CoordinatorState::replace(int slot) {
  if (notices.has_slot(slot)) return;
  const auto restart = slots.restart(slot, now(), options.draw_incarnation);
  if (restart.agent) self->send(restart.agent, restart.order);
  if (!restart.postponed.empty()) options.log(restart.postponed);
}

void CoordinatorState::kill(const ProcessId& process, const std::string& host, const std::string& why) {
  if (const auto agent = slots.agent_on(host)) self->send(agent, KillRank{process, why});
}

}  // namespace troupe
