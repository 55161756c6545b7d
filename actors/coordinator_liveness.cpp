// Coordinator and time: who is alive, who keeps the others waiting.
#include "actors/coordinator.hpp"

#include <algorithm>

#include "actors/diagnosis.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kStalled = 600ms;  // a longer gap between two ticks means that the coordinator itself was held up

}  // namespace

void CoordinatorState::consider(const CollectiveState& state) {
  auto& lane = stalled[state.lane];
  const bool asked =
      lane.contains(state.rank) && lane[state.rank].sequence == state.sequence && lane[state.rank].in_flight == state.in_flight;
  lane[state.rank] = state;
  if (phase != Phase::training) return;
  if (state.in_flight && !asked) {
    for (const auto& [slot, process] : processes) {
      if (process.member && !process.ended && rank_of(slot) != state.rank) self->send(process.supervisor, ReportCollectives{state.lane});
    }
  }
  std::vector<CollectiveState> states;
  for (const auto& [rank, newest] : lane) states.push_back(newest);
  if (const auto accused = diagnose(states)) abort(*accused);
}

void CoordinatorState::heard(const Heartbeat& beat) {
  const auto found = processes.find(beat.process.slot);
  if (found == processes.end() || found->second.joined.process != beat.process || found->second.fenced) {
    const auto sender = self->current_sender();
    if (sender && phase != Phase::over) {
      self->send(caf::actor_cast<RankSupervisorActor>(sender),
                 FenceRank{beat.process, "the job goes on without this process (generation " + std::to_string(current.generation) + ")"});
    }
    return;
  }
  found->second.heard = now();
  found->second.steps_done = beat.steps_done;
  if (found->second.suspected) {
    found->second.suspected = false;
    say("rank " + std::to_string(rank_of(beat.process.slot)) + " answers again");
  }
}

void CoordinatorState::down(const caf::down_msg& message) {
  for (auto& [slot, process] : processes) {
    if (process.supervisor.address() != message.source || process.ended) continue;
    lose(slot, "its connection closed", !agents.contains(process.joined.host));
    return;
  }
  for (auto agent = agents.begin(); agent != agents.end(); ++agent) {
    if (agent->second.address() != message.source) continue;
    const auto host = agent->first;
    agents.erase(agent);
    for (auto& [number, slot] : slots) {
      if (slot.host == host) slot.starting = false;
    }
    if (phase != Phase::over) say("the agent of " + host + " is gone");
    if (phase == Phase::recovering || phase == Phase::forming) plan();
    return;
  }
}

void CoordinatorState::tick() {
  const auto at = now();
  const bool held_up = at - last_tick > kStalled;
  last_tick = at;
  ++ticks;
  self->delayed_send(self, kCoordinatorTick, CoordinatorTick{});
  if (phase == Phase::over) return;
  tell_of_slow_saves();
  hurt_ranks();
  restart_cooled();
  for (auto& [slot, process] : processes) {
    if (process.ended || process.fenced) continue;
    if (ticks % 5 == 0) self->send(process.supervisor, CoordinatorBeat{});
    if (held_up) process.heard = at;                                     // it is we who did not listen
    if (!options.recovery.enabled || phase == Phase::forming) continue;  // who is being set up may be slow
    const auto silent = at - process.heard;
    if (silent > options.recovery.suspect_after && !process.suspected) {
      process.suspected = true;
      say("rank " + std::to_string(rank_of(slot)) + " is silent");
    }
    if (silent > options.recovery.fence_after) {
      const auto why = "silent for " + std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(silent).count()) + " ms";
      fence(slot, why);
      return;  // it may have changed the map's values; the next tick looks on
    }
  }
  if (options.resumed && phase == Phase::training) {
    const auto expected = current.members.size();
    const auto back = static_cast<std::size_t>(std::count_if(
        current.members.begin(), current.members.end(), [&](const Member& member) { return processes.contains(member.process.slot); }));
    if (all_accounted_for(at - begun > options.recovery.fence_after) && back < expected) {
      recover({ErrorCode::peer_lost,
               -1,
               {},
               -1,
               {},
               std::to_string(expected - back) + " ranks did not come back to the restarted coordinator",
               {}});
    }
  }
  if (phase == Phase::recovering && !options.recovery.enabled && at - since > 500ms) {
    for (const auto& [slot, process] : processes) {
      if (!process.interrupted) continue;
      const auto code = process.interrupted->hung ? ErrorCode::timeout : ErrorCode::peer_lost;
      abort({code, rank_of(slot), "reducer", process.interrupted->steps_done, {}, process.interrupted->why, {}});
      break;
    }
  } else if (phase == Phase::recovering || phase == Phase::forming) {
    plan();
  }
}

}  // namespace troupe
