#include "actors/coordinator.hpp"

namespace troupe {

CoordinatorActor::behavior_type coordinator(CoordinatorActor::stateful_pointer<CoordinatorState> self, CoordinatorOptions options) {
  auto& state = self->state;
  state.self = self;
  state.options = std::move(options);
  if (state.options.chaos) state.chaos.emplace(*state.options.chaos, state.options.world_size);
  state.begun = state.since = state.last_tick = state.now();
  if (state.options.resumed) {
    // The journal says who was in; they are given time to come back, then those that did not are lost.
    state.current = *state.options.resumed;
    state.phase = CoordinatorState::Phase::training;
  }
  self->set_down_handler([self](caf::down_msg& message) { self->state.down(message); });
  self->delayed_send(self, kCoordinatorTick, CoordinatorTick{});
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
      [this](const PartSaved& part) { part_saved(part); },
      [this](const CheckpointPublished& message) { published(message); },
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
  const auto accept = [this] { return JoinAccepted{{}, options.recovery.park_after.count()}; };
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
  // It may have missed the last announcement: the coordinator died between writing it down and making it.
  const bool member = current.rank_of(join.process) >= 0 && join.generation <= current.generation;
  if (!member && join.generation > 0) return refuse("fenced: generation " + std::to_string(current.generation) + " goes on without it");

  auto supervisor = caf::actor_cast<RankSupervisorActor>(sender);
  if (!alive) self->monitor(supervisor);
  Process process;
  process.supervisor = supervisor;
  process.joined = join;
  process.member = member;
  process.heard = now();
  processes[slot] = std::move(process);
  std::erase(unproved, join.process);
  slots[slot].starting = false;
  slots[slot].host = join.host;
  if (member) {
    if (join.generation < current.generation) self->send(supervisor, current);
    if (phase == Phase::recovering) plan();
    return accept();
  }
  if (phase == Phase::training && current.world_size() < options.world_size) {
    recover({ErrorCode::ok, -1, {}, -1, {}, "slot " + std::to_string(slot) + " on " + join.host + " joins", {}});
  } else if (phase == Phase::forming || phase == Phase::recovering) {
    plan();
  }
  return accept();
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
  end_chaos();
  const ErrorReport done{ErrorCode::ok, -1, {}, -1, {}, "the job is done", {}};
  for (const auto& [slot, process] : processes) {
    if (!process.ended) self->send(process.supervisor, AbortJob{done});
  }
  for (const auto& [host, agent] : agents) self->send(agent, JobOver{done, 0});
}

void CoordinatorState::abort(const ErrorReport& reason, int code) {
  if (phase == Phase::over) return;
  aborted = reason;
  phase = Phase::over;
  end_chaos();
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

}  // namespace troupe
