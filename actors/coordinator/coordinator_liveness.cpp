// Coordinator and time: who is alive, who keeps the others waiting.
#include "actors/coordinator/coordinator.hpp"

#include <algorithm>
#include <utility>

#include "actors/coordinator/diagnosis.hpp"
#include "actors/messages/message_limits.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kAskAgain = 1'000ms;
constexpr auto kStalled = 600ms;  // a longer gap between two ticks means that the coordinator itself was held up

}  // namespace

// What a rank said about a generation that is over accuses nobody in this one.
bool CoordinatorState::is_stale(std::uint64_t generation, const char* what) {
  if (generation == current.generation) return false;
  ++stale;
  if (std::exchange(stale_told, current.generation) != current.generation)
    say("dropped a " + std::string(what) + " of generation " + std::to_string(generation) + ", it is " +
        std::to_string(current.generation) + " (" + std::to_string(stale) + " such messages so far)");
  return true;
}

void CoordinatorState::consider(const CollectiveState& state) {
  if (phase == Phase::over || is_nonsense(problem_with(state)) || is_stale(state.generation, "report on collectives"))
    return;
  if (phase != Phase::training) {
    ++stale;
    return;
  }
  auto& lane = stalled[state.lane];
  lane.states[state.rank] = state;
  lane.news = true;
  // Once for all that wait in it, and again: who was on the way then may have ended since.
  if (!state.in_flight || (state.sequence <= lane.asked && now() - lane.asked_at < kAskAgain)) return;
  lane.asked = state.sequence;
  lane.asked_at = now();
  for (const auto& [slot, process] : processes) {
    if (process.member && !process.ended && rank_of(slot) != state.rank)
      self->send(process.supervisor, ReportCollectives{state.lane});
  }
}

// Ten times a second, not for every rank's word: each judgement looks at all.
void CoordinatorState::judge_lanes() {
  if (phase != Phase::training) return;
  for (auto& [name, lane] : stalled) {
    if (!std::exchange(lane.news, false)) continue;
    std::vector<CollectiveState> states;
    for (const auto& [rank, newest] : lane.states) states.push_back(newest);
    if (const auto accused = diagnose(states, current.members.size())) return abort(*accused);
  }
}

void CoordinatorState::heard(const Heartbeat& beat) {
  const auto found = processes.find(beat.process.slot);
  if (found == processes.end() || found->second.joined.process != beat.process || found->second.fenced) {
    ++stale;
    const auto sender = self->current_sender();
    if (sender && phase != Phase::over) {
      self->send(caf::actor_cast<RankSupervisorActor>(sender),
                 FenceRank{beat.process, "the job goes on without this process (generation " +
                                             std::to_string(current.generation) + ")"});
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
  if (const auto known = slot_of_address.find(message.source); known != slot_of_address.end()) {
    const int slot = known->second;
    slot_of_address.erase(known);
    const auto process = processes.find(slot);
    if (process == processes.end() || process->second.supervisor.address() != message.source || process->second.ended)
      return;
    return lose(slot, "its connection closed", !agents.contains(process->second.joined.host));
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
  judge_lanes();
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
      const auto why =
          "silent for " + std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(silent).count()) + " ms";
      fence(slot, why);
      return;  // it may have changed the map's values; the next tick looks on
    }
  }
  if (options.resumed && phase == Phase::training) {
    const auto expected = current.members.size();
    const auto back = static_cast<std::size_t>(
        std::count_if(current.members.begin(), current.members.end(),
                      [&](const Member& member) { return processes.contains(member.process.slot); }));
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
