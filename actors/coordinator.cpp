#include "actors/coordinator.hpp"

#include <algorithm>
#include <random>

#include <sys/wait.h>

#include "actors/diagnosis.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kTick = 100ms;
constexpr auto kStalled = 600ms;       // a longer gap between two ticks means that the coordinator itself was held up
constexpr auto kProof = 1'000ms;       // how long to wait for an agent's word on how a process ended
constexpr auto kLeaveStep = 60'000ms;  // for a survivor to come out of its step
constexpr int kFruitless = 3;

std::string how(std::int32_t wait_status) {
  if (WIFSIGNALED(wait_status)) return "signal " + std::to_string(WTERMSIG(wait_status));
  return "exit code " + std::to_string(WEXITSTATUS(wait_status));
}

std::uint64_t random_incarnation() {
  std::random_device random;
  return (std::uint64_t{random()} << 32 | random()) | 1;
}

}  // namespace

CoordinatorActor::behavior_type coordinator(CoordinatorActor::stateful_pointer<CoordinatorState> self, CoordinatorOptions options) {
  auto& state = self->state;
  state.self = self;
  state.options = std::move(options);
  state.since = state.last_tick = state.now();
  if (state.options.resumed) {
    // The journal says who was in; they are given time to come back, then those that did not are lost.
    state.current = *state.options.resumed;
    state.phase = CoordinatorState::Phase::training;
  }
  self->set_down_handler([self](caf::down_msg& message) { self->state.down(message); });
  self->delayed_send(self, kTick, CoordinatorTick{});
  return state.make_behavior();
}

CoordinatorActor::behavior_type CoordinatorState::make_behavior() {
  return {
      [this](const JoinJob& join) { return this->join(join, self->current_sender()); },
      [this](const JoinNode& node) {
        join_node(node, self->current_sender());
        return true;
      },
      [this](PutValue& value) { put(std::move(value)); },
      [this](const GetValue& get) -> caf::result<bool, std::string> {
        const auto found = values.find(get.key);
        return {found != values.end(), found != values.end() ? found->second : std::string()};
      },
      [this](const CollectiveState& state) { consider(state); },
      [this](const Heartbeat& beat) { heard(beat); },
      [this](const RankInterrupted& report) { interrupted(report); },
      [this](const RankExited& exit) { exited(exit); },
      [this](const RankEnded& ended) {
        end(ended);
        return true;
      },
      [this](const StopJob& message) { stop(message); },
      [this](const CoordinatorTick&) { tick(); },
  };
}

caf::actor_clock::time_point CoordinatorState::now() const { return self->clock().now(); }

void CoordinatorState::say(const std::string& text) const {
  if (options.log) options.log(text);
}

int CoordinatorState::rank_of(int slot) const {
  const auto found = processes.find(slot);
  const int rank = found == processes.end() ? -1 : current.rank_of(found->second.joined.process);
  return rank >= 0 ? rank : slot;
}

JoinAccepted CoordinatorState::join(const JoinJob& join, const caf::strong_actor_ptr& sender) {
  const auto refuse = [](std::string why) { return JoinAccepted{std::move(why)}; };
  const int slot = join.process.slot;
  if (join.job_id != options.job_id) return refuse("job id " + join.job_id + " is not this job's (" + options.job_id + ")");
  if (join.world_size != options.world_size) {
    return refuse("world size " + std::to_string(join.world_size) + " is not this job's (" + std::to_string(options.world_size) + ")");
  }
  if (slot < 0 || (slot >= options.world_size && !options.recovery.enabled))
    return refuse("rank " + std::to_string(slot) + " is outside the world size");
  if (aborted) return refuse("the job is over: " + aborted->to_string());
  for (const auto& [other, process] : processes) {
    if (process.ended || process.fenced || other == slot) continue;
    if (process.joined.build_id != join.build_id) {
      return refuse("the program differs from rank " + std::to_string(other) + "'s (build " + join.build_id + ", " +
                    process.joined.build_id + ")");
    }
    if (process.joined.config_hash != join.config_hash) {
      return refuse("the config differs from rank " + std::to_string(other) +
                    "'s: start every rank with the same flags, file and environment");
    }
  }
  const auto known = processes.find(slot);
  const bool alive = known != processes.end() && !known->second.ended && !known->second.fenced;
  if (alive && known->second.joined.process != join.process)
    return refuse("rank " + std::to_string(slot) + " has joined already: two processes have the same rank");
  const bool member = join.generation > 0;
  if (member && (join.generation != current.generation || current.rank_of(join.process) < 0))
    return refuse("fenced: generation " + std::to_string(current.generation) + " goes on without it");

  auto supervisor = caf::actor_cast<RankSupervisorActor>(sender);
  if (!alive) self->monitor(supervisor);
  Process process;
  process.supervisor = supervisor;
  process.joined = join;
  process.member = member;
  process.heard = now();
  processes[slot] = std::move(process);
  slots[slot].starting = false;
  slots[slot].host = join.host;
  if (member) return {};
  if (phase == Phase::training && current.world_size() < options.world_size) {
    recover({ErrorCode::ok, -1, {}, -1, {}, "slot " + std::to_string(slot) + " on " + join.host + " joins", {}});
  } else if (phase == Phase::forming || phase == Phase::recovering) {
    plan();
  }
  return {};
}

void CoordinatorState::join_node(const JoinNode& node, const caf::strong_actor_ptr& sender) {
  if (node.job_id != options.job_id) return;
  auto agent = caf::actor_cast<NodeAgentActor>(sender);
  self->monitor(agent);
  agents[node.host] = agent;
  for (const auto& process : node.started) {
    auto& slot = slots[process.slot];
    slot.host = node.host;
    if (!processes.contains(process.slot) && !options.resumed) slot.starting = true;
  }
  if (options.resumed) {
    for (const auto& member : current.members) {
      if (member.host == node.host && std::find(node.started.begin(), node.started.end(), member.process) == node.started.end())
        gone.push_back(member.process.slot);
    }
  }
  if (phase == Phase::over)
    self->send(agent,
               JobOver{aborted.value_or(ErrorReport{ErrorCode::ok, -1, {}, -1, {}, {}, {}}), aborted ? exit_code(aborted->code) : 0});
}

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
  if (found->second.suspected) {
    found->second.suspected = false;
    say("rank " + std::to_string(rank_of(beat.process.slot)) + " answers again");
  }
}

void CoordinatorState::interrupted(const RankInterrupted& report) {
  if (report.generation != current.generation || phase == Phase::over) return;
  const auto found = processes.find(report.process.slot);
  if (found == processes.end() || found->second.joined.process != report.process) return;
  found->second.interrupted = report;
  found->second.heard = now();
  if (!options.recovery.enabled) {
    // Who is to blame shows in a moment: its connection closes, or it says so itself. Else this rank's word stands.
    if (phase == Phase::training) {
      phase = Phase::recovering;
      since = now();
    }
    return;
  }
  if (phase == Phase::training) {
    recover({ErrorCode::peer_lost, rank_of(report.process.slot), {}, report.steps_done, {}, report.why, {}});
  } else {
    plan();
  }
}

void CoordinatorState::exited(const RankExited& exit) {
  const int number = exit.process.slot;
  auto& slot = slots[number];
  const auto found = processes.find(number);
  const bool joined = found != processes.end() && found->second.joined.process == exit.process;
  if (!joined) {
    slot.starting = false;
    if (phase == Phase::over || (found != processes.end() && !found->second.ended && !found->second.fenced)) return;
    const int code = WIFEXITED(exit.wait_status) ? WEXITSTATUS(exit.wait_status) : 128 + WTERMSIG(exit.wait_status);
    if (code == 0) return;                                           // a program that is none of ours
    if (phase == Phase::forming && exit.process.incarnation == 0) {  // its host can't be reached
      slot.absent = true;
      plan();
    } else if (phase == Phase::forming) {
      abort({ErrorCode::unavailable, number, {}, -1, {}, "it ended before it joined (" + how(exit.wait_status) + ")", {}}, code);
    } else if (options.recovery.enabled) {
      slot.deaths.push_back(now());
      say("the process in slot " + std::to_string(number) + " ended before it joined (" + how(exit.wait_status) + ")");
      replace(number);
      plan();
    }
    return;
  }
  const bool waited_for = std::erase(unproved, exit.process) > 0;
  if (found->second.ended) {
    if (phase != Phase::recovering) return;
    if (waited_for) say("rank " + std::to_string(rank_of(number)) + " ended with " + how(exit.wait_status));
    if (waited_for) replace(number);
    plan();
    return;
  }
  lose(number, how(exit.wait_status), true);
}

void CoordinatorState::end(const RankEnded& ended) {
  const auto found = processes.find(ended.process.slot);
  if (found == processes.end() || found->second.ended || found->second.joined.process != ended.process) return;
  found->second.ended = ended.report;
  if (phase == Phase::over) return;
  // A rank that was told to abort has nothing new to say.
  if (ended.report.code != ErrorCode::ok && ended.report.code != ErrorCode::interrupted) {
    abort(ended.report);
  } else {
    over_if_all_ended();
    if (phase == Phase::recovering) plan();
  }
}

void CoordinatorState::over_if_all_ended() {
  if (current.members.empty()) return;
  for (const auto& member : current.members) {
    const auto found = processes.find(member.process.slot);
    if (found == processes.end() || found->second.joined.process != member.process || !found->second.ended) return;
  }
  phase = Phase::over;
  const ErrorReport done{ErrorCode::ok, -1, {}, -1, {}, "the job is done", {}};
  for (const auto& [slot, process] : processes) {
    if (!process.ended) self->send(process.supervisor, AbortJob{done});
  }
  for (const auto& [host, agent] : agents) self->send(agent, JobOver{done, 0});
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

void CoordinatorState::lose(int number, const std::string& why, bool proved) {
  auto& process = processes.at(number);
  const auto rank = rank_of(number);
  const bool was_member = process.member && current.rank_of(process.joined.process) >= 0;
  const ErrorReport report{
      ErrorCode::peer_lost, rank, {}, -1, {}, "rank " + std::to_string(rank) + " died (" + why + ")", "its log and exit status say why"};
  process.ended = report;
  if (phase == Phase::over) return;
  if (!was_member) {
    say("the process in slot " + std::to_string(number) + " is gone (" + why + ")");
    if (phase == Phase::forming) return abort(report);
  } else if (!options.recovery.enabled) {
    return abort(report);
  } else if (!proved) {
    unproved.push_back(process.joined.process);
  }
  slots[number].deaths.push_back(now());
  if (proved) replace(number);
  if (was_member && phase == Phase::training) {
    recover(report);
  } else if (phase == Phase::recovering) {
    plan();
  }
}

void CoordinatorState::replace(int number) {
  auto& slot = slots[number];
  const auto agent = agents.find(slot.host);
  if (!options.recovery.enabled || agent == agents.end() || number >= options.world_size) return;
  std::erase_if(slot.deaths, [&](const auto& at) { return now() - at > options.recovery.restart_window; });
  const auto deaths = static_cast<int>(slot.deaths.size());
  if (deaths > options.recovery.max_restarts) {
    say("slot " + std::to_string(number) + " on " + slot.host + " died " + std::to_string(deaths) + (deaths == 1 ? " time" : " times") +
        " within " + std::to_string(options.recovery.restart_window.count() / 1000) + " s: it is not started again");
    return;
  }
  slot.starting = true;
  self->send(agent->second, StartRank{{number, random_incarnation()}, deaths});
}

void CoordinatorState::recover(const ErrorReport& reason) {
  phase = Phase::recovering;
  since = now();
  say((reason.code == ErrorCode::ok ? "" : "generation " + std::to_string(current.generation) + " is interrupted: ") + reason.cause);
  for (auto& [slot, process] : processes) {
    if (process.member && !process.ended) self->send(process.supervisor, InterruptRanks{current.generation, reason});
  }
  plan();
}

void CoordinatorState::plan() {
  MembershipQuestion question;
  question.world_size = options.world_size;
  question.min_ranks = options.recovery.enabled ? options.recovery.min_ranks : options.world_size;
  question.current = current;
  question.min_start = options.recovery.enabled && options.recovery.min_start > 0 ? options.recovery.min_start : options.world_size;
  for (const auto& [number, slot] : slots) question.absent += slot.absent ? 1 : 0;
  question.unreachable = static_cast<int>(unproved.size());
  question.waited = std::chrono::duration_cast<std::chrono::milliseconds>(now() - since);
  question.replace_timeout = phase == Phase::forming ? options.join_timeout : options.recovery.replace_timeout;
  for (const auto& member : current.members) {
    const auto found = processes.find(member.process.slot);
    if (found == processes.end() || found->second.joined.process != member.process) continue;
    const auto& process = found->second;
    if (!process.ended) question.survivors.push_back({member, process.interrupted});
    if (process.ended && (process.ended->code == ErrorCode::ok || process.ended->code == ErrorCode::interrupted)) {
      return abort({ErrorCode::peer_lost,
                    -1,
                    {},
                    -1,
                    {},
                    "a rank was lost while rank " + std::to_string(rank_of(member.process.slot)) + " had finished",
                    "start again with --resume latest"});
    }
  }
  for (const auto& [slot, process] : processes) {
    if (!process.member && !process.ended && !process.fenced)
      question.candidates.push_back({process.joined.process, process.joined.host, process.joined.spare});
  }
  for (const auto& [number, slot] : slots) question.replacements_coming += slot.starting ? 1 : 0;
  // An agent is about to say how its process ended.
  for (const auto& process : unproved) {
    if (agents.contains(slots[process.slot].host) && question.waited < kProof) return;
  }

  auto answer = plan_membership(question);
  using Action = MembershipAnswer::Action;
  if (answer.action == Action::wait) {
    if (phase == Phase::recovering && question.waited > kLeaveStep) {
      abort({ErrorCode::timeout, -1, {}, -1, "recovery", answer.reason + " for " + std::to_string(kLeaveStep.count() / 1000) + " s", {}});
    } else if (phase == Phase::forming && question.waited > options.join_timeout) {
      abort({ErrorCode::unavailable,
             -1,
             {},
             -1,
             "start",
             answer.reason + " within " + std::to_string(options.join_timeout.count() / 1000) + " s",
             "is every host reachable, and every rank started?"});
    }
  } else if (answer.action == Action::go) {
    announce(std::move(answer.next));
  } else if (answer.action == Action::expel) {
    say(answer.reason);
    auto& process = processes.at(answer.expelled.slot);
    process.fenced = true;
    const auto agent = agents.find(process.joined.host);
    if (agent != agents.end()) self->send(agent->second, KillRank{answer.expelled, answer.reason});
    self->send(process.supervisor, FenceRank{answer.expelled, answer.reason});
    lose(answer.expelled.slot, answer.reason, false);
  } else if (unproved.empty() || question.waited > options.recovery.park_after) {
    int writer = -1;
    for (const auto& survivor : question.survivors) {
      if (writer < 0) writer = current.rank_of(survivor.member.process);
    }
    if (phase == Phase::forming)
      return abort({ErrorCode::unavailable, -1, {}, -1, "start", answer.reason, "see which host failed, or lower --min-ranks"});
    abort({ErrorCode::parked, writer, {}, -1, "recovery", answer.reason, "start again with --resume latest"});
  }
}

void CoordinatorState::announce(Membership next) {
  if (next.resume_step > last_resume || phase == Phase::forming) fruitless = 0;
  last_resume = next.resume_step;
  if (++fruitless > kFruitless + 1) {
    return abort({ErrorCode::aborted,
                  -1,
                  {},
                  next.resume_step,
                  "recovery",
                  "step " + std::to_string(next.resume_step) + " was interrupted " + std::to_string(fruitless - 1) + " times",
                  "see the ranks' logs"});
  }
  if (options.record) {
    try {
      options.record(next);
    } catch (const Error& error) {
      return abort(error.report());
    }
  }
  if (phase == Phase::recovering) {
    const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(now() - since).count();
    say("generation " + std::to_string(next.generation) + ": " + next.reason + " (after " + std::to_string(spent) + " ms)");
  }
  current = std::move(next);
  unproved.clear();
  stalled.clear();
  values.clear();
  phase = Phase::training;
  since = now();
  for (auto& [slot, process] : processes) {
    process.interrupted.reset();
    process.member = !process.ended && current.rank_of(process.joined.process) >= 0;
    if (process.member) self->send(process.supervisor, current);
  }
}

void CoordinatorState::abort(const ErrorReport& reason, int code) {
  if (phase == Phase::over) return;
  aborted = reason;
  phase = Phase::over;
  for (const auto& [slot, process] : processes) {
    if (process.supervisor) self->send(process.supervisor, AbortJob{reason});
  }
  for (const auto& [host, agent] : agents) self->send(agent, JobOver{reason, code != 0 ? code : exit_code(reason.code)});
}

void CoordinatorState::stop(const StopJob& stop) {
  for (const auto& [slot, process] : processes) {
    if (!process.ended) self->send(process.supervisor, stop);
  }
}

void CoordinatorState::tick() {
  const auto at = now();
  const bool held_up = at - last_tick > kStalled;
  last_tick = at;
  self->delayed_send(self, kTick, CoordinatorTick{});
  if (phase == Phase::over) return;
  for (auto& [slot, process] : processes) {
    if (process.ended || process.fenced) continue;
    if (held_up) process.heard = at;                                     // it is we who did not listen
    if (!options.recovery.enabled || phase == Phase::forming) continue;  // who is being set up may be slow
    const auto silent = at - process.heard;
    if (silent > options.recovery.suspect_after && !process.suspected) {
      process.suspected = true;
      say("rank " + std::to_string(rank_of(slot)) + " is silent");
    }
    if (silent > options.recovery.fence_after) {
      const auto why = "silent for " + std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(silent).count()) + " ms";
      process.fenced = true;
      const auto agent = agents.find(process.joined.host);
      if (agent != agents.end()) self->send(agent->second, KillRank{process.joined.process, why});
      lose(slot, why, false);
      return;  // lose may have changed the map's values; the next tick looks on
    }
  }
  // Members that the journal names and that never came back.
  if (options.resumed && phase == Phase::training && at - since > options.recovery.fence_after) {
    options.resumed.reset();
    int missing = 0;
    for (const auto& member : current.members) {
      if (processes.contains(member.process.slot)) continue;
      ++missing;
      slots[member.process.slot].host = member.host;
      if (std::find(gone.begin(), gone.end(), member.process.slot) != gone.end()) {
        replace(member.process.slot);
      } else {
        unproved.push_back(member.process);
      }
    }
    if (missing > 0)
      recover(
          {ErrorCode::peer_lost, -1, {}, -1, {}, std::to_string(missing) + " ranks did not come back to the restarted coordinator", {}});
  }
  if (phase == Phase::recovering && !options.recovery.enabled && at - since > 500ms) {
    for (const auto& [slot, process] : processes) {
      if (!process.interrupted) continue;
      abort({ErrorCode::peer_lost, rank_of(slot), "reducer", process.interrupted->steps_done, {}, process.interrupted->why, {}});
      break;
    }
  } else if (phase == Phase::recovering || phase == Phase::forming) {
    plan();
  }
}

}  // namespace troupe
