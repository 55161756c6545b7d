// Coordinator and the agents of the hosts: what they run, which of it ended, what they are to start.
#include "actors/coordinator/coordinator.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>

#include "actors/messages/message_limits.hpp"

namespace troupe {
namespace {

// `ours`: the job has killed it itself, if it was killed.
std::string how(std::int32_t wait_status, bool ours = false) {
  const bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
  if (killed && !ours) return "signal 9, which this job did not send: perhaps out of memory, see dmesg on its host";
  if (WIFSIGNALED(wait_status)) return "signal " + std::to_string(WTERMSIG(wait_status));
  return "exit code " + std::to_string(WEXITSTATUS(wait_status));
}

}  // namespace

bool CoordinatorState::join_node(const JoinNode& node, const caf::strong_actor_ptr& sender) {
  if (is_nonsense(problem_with(node)) || !sender || node.job_id != options.job_id) return false;
  auto agent = caf::actor_cast<NodeAgentActor>(sender);
  self->monitor(agent);
  agents[node.host] = agent;
  for (const auto& process : node.started) {
    auto& slot = slots[process.slot];
    slot.host = node.host;
    if (!processes.contains(process.slot) && !(options.resumed && member_rank(process) >= 0)) slot.starting = true;
  }
  if (options.resumed) {
    for (const auto& member : current.members) {
      if (member.host == node.host &&
          std::find(node.started.begin(), node.started.end(), member.process) == node.started.end())
        gone.push_back(member.process.slot);
    }
  }
  if (phase == Phase::over)
    self->send(agent, JobOver{aborted.value_or(ErrorReport{ErrorCode::ok, -1, {}, -1, {}, {}, {}}),
                              aborted ? exit_code(aborted->code) : 0});
  return true;
}

void CoordinatorState::exited(const RankExited& exit) {
  if (is_nonsense(problem_with(exit))) return;
  const int number = exit.process.slot;
  auto& slot = slots[number];
  const auto found = processes.find(number);
  const bool joined = found != processes.end() && found->second.joined.process == exit.process;
  const bool waited_for = std::erase(unproved, exit.process) > 0;
  if (!joined) {
    slot.starting = false;
    if (phase == Phase::over || (found != processes.end() && !found->second.ended && !found->second.fenced)) return;
    const int code = WIFEXITED(exit.wait_status) ? WEXITSTATUS(exit.wait_status) : 128 + WTERMSIG(exit.wait_status);
    if (code == 0) return;                                           // a program that is none of ours
    if (phase == Phase::forming && exit.process.incarnation == 0) {  // its host can't be reached
      slot.absent = true;
      plan();
    } else if (phase == Phase::forming) {
      abort(
          {ErrorCode::unavailable, number, {}, -1, {}, "it ended before it joined (" + how(exit.wait_status) + ")", {}},
          code);
    } else if (options.recovery.enabled) {
      slot.deaths.push_back(now());
      say("the process in slot " + std::to_string(number) + " ended before it joined (" + how(exit.wait_status) + ")");
      replace(number);
      plan();
    }
    return;
  }
  if (found->second.ended) {
    if (phase != Phase::recovering) return;
    if (waited_for)
      say("rank " + std::to_string(rank_of(number)) + " ended with " +
          how(exit.wait_status, found->second.fenced || found->second.hurt));
    if (waited_for) replace(number);
    plan();
    return;
  }
  lose(number, how(exit.wait_status, found->second.hurt), true);
}

void CoordinatorState::replace(int number) {
  auto& slot = slots[number];
  const auto agent = agents.find(slot.host);
  if (!options.recovery.enabled || agent == agents.end() || number >= options.world_size) return;
  if (options.recovery.max_restarts == 0) return;  // never is not later
  const auto decision = restart_decision(number);
  if (!decision.start) {
    slot.cooling = true;
    say("slot " + std::to_string(number) + " on " + slot.host + " " + decision.reason +
        ": it is not started again before " + std::to_string((decision.wait.count() + 999) / 1000) + " s are over");
    return;
  }
  slot.starting = true;
  slot.cooling = false;
  self->send(agent->second, StartRank{{number, options.draw_incarnation()}, ++slot.restarts});
}

RestartDecision CoordinatorState::restart_decision(int number) {
  const auto ages = [this](Slot& slot) {
    std::erase_if(slot.deaths, [&](const auto& at) { return now() - at > options.recovery.restart_window; });
    std::vector<std::chrono::milliseconds> ages;
    for (const auto& at : slot.deaths)
      ages.push_back(std::chrono::duration_cast<std::chrono::milliseconds>(now() - at));
    return ages;
  };
  if (now() < slots[number].held_until)
    return {false, std::chrono::duration_cast<std::chrono::milliseconds>(slots[number].held_until - now()),
            "is at a link that failed"};
  std::vector<std::chrono::milliseconds> of_host;
  int slots_of_host = 0;
  for (auto& [other, slot] : slots) {
    if (slot.host != slots[number].host) continue;
    ++slots_of_host;
    for (const auto age : ages(slot)) of_host.push_back(age);
  }
  return may_restart(ages(slots[number]), of_host,
                     {.most = options.recovery.max_restarts,
                      .most_of_host = options.recovery.max_restarts + slots_of_host,
                      .window = options.recovery.restart_window});
}

// A slot that died too often has cooled down, and the job still lacks a rank.
void CoordinatorState::restart_cooled() {
  if (phase != Phase::training || current.world_size() >= options.world_size) return;
  for (auto& [number, slot] : slots) {
    if (slot.cooling && restart_decision(number).start) replace(number);
  }
}

}  // namespace troupe
