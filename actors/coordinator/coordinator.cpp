#include "actors/coordinator/coordinator.hpp"

#include "actors/messages/message_limits.hpp"

namespace troupe {

namespace {

ErrorReport job_is_done() { return {ErrorCode::ok, -1, {}, -1, {}, "the job is done", {}}; }

}  // namespace

CoordinatorActor::behavior_type coordinator(CoordinatorActor::stateful_pointer<CoordinatorState> self,
                                            CoordinatorOptions options) {
  auto& state = self->state;
  state.self = self;
  state.options = std::move(options);
  if (state.options.chaos) state.chaos.emplace(*state.options.chaos, state.options.world_size);
  state.begun = state.since = state.last_tick = state.now();
  if (state.options.resumed) {
    // The journal says who was in; they are given time to come back, then those that did not are lost.
    state.make_current(*state.options.resumed);
    state.phase = CoordinatorState::Phase::training;
  }
  self->set_down_handler([self](caf::down_msg& message) { self->state.down(message); });
  self->delayed_send(self, kCoordinatorTick, CoordinatorTick{});
  return state.make_behavior();
}

CoordinatorActor::behavior_type CoordinatorState::make_behavior() {
  return {
      [this](const JoinJob& join) { return this->join(join, self->current_sender()); },
      [this](const JoinNode& node) { return join_node(node, self->current_sender()); },
      [this](PutValue& value) { put(std::move(value)); },
      [this](const GetValue& get) -> caf::result<bool, std::string> {
        if (get.key == kRunKey) return {true, options.job_id + "\n" + options.run_dir};
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
  const int rank = found == processes.end() ? -1 : member_rank(found->second.joined.process);
  return rank >= 0 ? rank : slot;
}

// As Membership::rank_of, without looking at all of them.
int CoordinatorState::member_rank(const ProcessId& process) const {
  const auto found = rank_by_slot.find(process.slot);
  if (found == rank_by_slot.end()) return -1;
  return current.members[static_cast<std::size_t>(found->second)].process == process ? found->second : -1;
}

void CoordinatorState::make_current(Membership next) {
  current = std::move(next);
  rank_by_slot.clear();
  for (int rank = 0; rank < current.world_size(); ++rank)
    rank_by_slot[current.members[static_cast<std::size_t>(rank)].process.slot] = rank;
}

JoinAccepted CoordinatorState::join(const JoinJob& join, const caf::strong_actor_ptr& sender) {
  const auto refuse = [](std::string why) { return JoinAccepted{std::move(why)}; };
  const auto accept = [this] { return JoinAccepted{{}, options.recovery.park_after.count()}; };
  const int slot = join.process.slot;
  if (const auto problem = problem_with(join); !problem.empty()) return refuse(problem);
  if (!sender) return refuse("a rank that joins says who it is");
  if (join.job_id != options.job_id)
    return refuse("job id " + join.job_id + " is not this job's (" + options.job_id + ")");
  if (join.world_size != options.world_size) {
    return refuse("world size " + std::to_string(join.world_size) + " is not this job's (" +
                  std::to_string(options.world_size) + ")");
  }
  if (slot < 0 || (slot >= options.world_size && !options.recovery.enabled))
    return refuse("rank " + std::to_string(slot) + " is outside the world size");
  if (aborted) return refuse("the job is over: " + aborted->to_string());
  if (phase == Phase::over) {  // done, and this one was to replace a rank that was lost at the end
    self->send(caf::actor_cast<RankSupervisorActor>(sender), AbortJob{job_is_done()});
    return accept();
  }
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
    break;  // the others have been compared with it
  }
  const auto known = processes.find(slot);
  const bool alive = known != processes.end() && !known->second.ended && !known->second.fenced;
  if (alive && known->second.joined.process != join.process)
    return refuse("rank " + std::to_string(slot) + " has joined already: two processes have the same rank");
  // It may have missed the last announcement: the coordinator died between writing it down and making it.
  const bool member = member_rank(join.process) >= 0 && join.generation <= current.generation;
  if (!member && join.generation > 0)
    return refuse("fenced: generation " + std::to_string(current.generation) + " goes on without it");

  auto supervisor = caf::actor_cast<RankSupervisorActor>(sender);
  const bool monitored = alive && known->second.supervisor.address() == supervisor.address();
  if (!monitored) self->monitor(supervisor);
  slot_of_address[supervisor.address()] = slot;
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
    tell_again(join, supervisor);
    return accept();
  }
  if (phase == Phase::training && current.world_size() < options.world_size) {
    recover({ErrorCode::ok, -1, {}, -1, {}, "slot " + std::to_string(slot) + " on " + join.host + " joins", {}});
  } else if (phase == Phase::recovering ||
             (phase == Phase::forming && static_cast<int>(processes.size()) >= options.world_size)) {
    plan_if_all_are_heard();  // one that is late is looked for ten times a second
  }
  return accept();
}

// A member has come back over another connection: what was sent over the one that broke may be lost.
void CoordinatorState::tell_again(const JoinJob& join, const RankSupervisorActor& supervisor) {
  if (join.generation < current.generation) self->send(supervisor, current);
  if (phase == Phase::recovering) {
    unheard.insert(join.process.slot);
    self->send(supervisor, InterruptRanks{current.generation, interruption});
  }
  for (auto& save : saves) save.round.came_back(join.process);
  go_on_with_saves();
}

void CoordinatorState::put(PutValue value) {
  constexpr std::size_t kMostValues = 1'000'000;  // of one generation: 1,000 ranks that connect each with each
  if (is_nonsense(problem_with(value)) || (values.size() >= kMostValues && is_nonsense("there are too many values")))
    return;
  values.insert_or_assign(std::move(value.key), std::move(value.value));
}

// What no rank of this version sends is dropped, and the user told of the first.
bool CoordinatorState::is_nonsense(const std::string& problem) {
  if (problem.empty()) return false;
  if (nonsense++ == 0) say("dropped a message that makes no sense: " + problem);
  return true;
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
    unheard.erase(ended.process.slot);
    if (phase == Phase::recovering) plan_if_all_are_heard();
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
  const auto done = job_is_done();
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
  for (const auto& [host, agent] : agents)
    self->send(agent, JobOver{reason, code != 0 ? code : exit_code(reason.code)});
}

void CoordinatorState::stop(const StopJob& stop) {
  for (const auto& [slot, process] : processes) {
    if (!process.ended) self->send(process.supervisor, stop);
  }
}

}  // namespace troupe
