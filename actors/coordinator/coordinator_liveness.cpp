// Coordinator and time: who is alive, who keeps the others waiting.
#include "actors/coordinator/coordinator.hpp"
#include "actors/messages/message_limits.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

// Without recovery: no rank has said that it is to blame, so an interrupted rank's word stands.
std::optional<ErrorReport> word_of_interrupted(const ProcessTable& processes) {
  for (const auto& [slot, process] : processes.all()) {
    if (!process.interrupted) continue;
    auto word = report_of(*process.interrupted, processes.rank_of(slot));
    word.actor = "reducer";
    return word;
  }
  return std::nullopt;
}

// --chaos.
void hurt_ranks(CoordinatorState& state) {
  const bool whole = state.phase == CoordinatorState::Phase::training &&
                     state.processes.current().world_size() == state.options.world_size;
  for (const auto& injection : state.chaos.due(state.processes, whole, state.now())) {
    state.options.log(injection.line);
    if (injection.leaves) {
      take_notice(state, *injection.leaves, /*drill=*/true);
    } else if (injection.target) {
      state.self->send(injection.target, injection.fault);
    }
  }
}

}  // namespace

void CoordinatorState::consider(const CollectiveState& state) {
  if (phase == Phase::over || filter.is_nonsense(problem_with(state)) ||
      filter.is_stale(state.generation, processes.current().generation, "report on collectives"))
    return;
  if (phase != Phase::training) return filter.count_stale();
  if (!stalls.report(state, now())) return;
  for (const auto& [slot, process] : processes.all()) {
    if (process.member && !process.ended && processes.rank_of(slot) != state.rank)
      self->send(process.supervisor, ReportCollectives{state.communicator});
  }
}

void CoordinatorState::heard(const Heartbeat& beat) {
  const int slot = beat.process.slot;
  auto* process = processes.find(beat.process);
  if (process == nullptr || process->fenced) {
    filter.count_stale();
    const auto sender = self->current_sender();
    if (sender && phase != Phase::over)
      self->send(caf::actor_cast<RankSupervisorActor>(sender),
                 FenceRank{beat.process, "the job goes on without this process (generation " +
                                             std::to_string(processes.current().generation) + ")"});
    return;
  }
  process->made(beat.steps_done);
  detector.heard(slot, now());
  if (detector.clear_suspicion(slot)) options.log("rank " + std::to_string(processes.rank_of(slot)) + " answers again");
}

void CoordinatorState::down(const caf::down_msg& message) {
  if (const auto slot = processes.take_address(message.source)) {
    const auto* process = processes.in_slot(*slot);
    if (process == nullptr || process->supervisor.address() != message.source || process->ended) return;
    const bool watched = slots.agents().contains(process->joined.host);
    // It may be at its end, and comes back to say so; if it is dead its agent says so.
    if (phase == Phase::training && process->may_leave && watched) return;
    lose(*slot, "its connection closed", !watched);
  } else if (const auto host = slots.remove_agent(message.source)) {
    if (phase != Phase::over) options.log("the agent of " + *host + " is gone");
    if (phase == Phase::recovering || phase == Phase::forming) plan();
  }
}

void CoordinatorState::tick() {
  detector.tick(now());
  self->delayed_send(self, kCoordinatorTick, CoordinatorTick{});
  if (phase == Phase::over) return;
  // Ten times a second, not for every rank's word: each judgement looks at all.
  if (phase == Phase::training) {
    if (const auto accused = stalls.judge(processes.current().members.size())) return abort(*accused);
  }
  for (const auto& line : saves.slow(now())) options.log(line);
  if (phase != Phase::forming) hurt_ranks(*this);
  let_leave(*this);
  if (phase == Phase::training && processes.current().world_size() < options.world_size) {
    for (const int slot : slots.cooled(now())) replace(slot);  // the job still lacks a rank
  }
  if (fence_silent()) return;
  if (const auto slot = resumption.awaits(processes); slot && now() - since > options.recovery.fence_after)
    return fence(*slot, "it does not report its membership");
  const auto missing = phase == Phase::training ? settle_resumption(*this).value_or(0) : 0;
  if (missing > 0)
    recover({.code = ErrorCode::peer_lost,
             .cause = std::to_string(missing) + " ranks did not come back to the restarted coordinator"});
  if (phase == Phase::recovering && !options.recovery.enabled && now() - since > 500ms) {
    if (const auto word = word_of_interrupted(processes)) abort(*word);
  } else if (phase == Phase::recovering || phase == Phase::forming) {
    plan();
  }
}

// True: one was fenced. It may have changed the table's values, so the next tick looks at the rest.
bool CoordinatorState::fence_silent() {
  for (auto& [slot, process] : processes.all()) {
    if (!process.is_active()) continue;
    if (detector.beat_is_due()) self->send(process.supervisor, CoordinatorBeat{});
    if (!options.recovery.enabled || phase == Phase::forming) continue;  // who is being set up may be slow
    const auto judgement = detector.judge(slot, now());
    if (judgement.suspected) options.log("rank " + std::to_string(processes.rank_of(slot)) + " is silent");
    if (!judgement.lost) continue;
    fence(slot, "silent for " + std::to_string(judgement.silent.count()) + " ms");
    return true;
  }
  return false;
}

}  // namespace troupe
