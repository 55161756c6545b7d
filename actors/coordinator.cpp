#include "actors/coordinator.hpp"

#include "actors/diagnosis.hpp"

namespace troupe {

CoordinatorActor::behavior_type coordinator(CoordinatorActor::stateful_pointer<CoordinatorState> self, CoordinatorOptions options) {
  self->state.self = self;
  self->state.options = std::move(options);
  self->set_down_handler([self](caf::down_msg& down) { self->state.lost(down); });
  return self->state.make_behavior();
}

CoordinatorActor::behavior_type CoordinatorState::make_behavior() {
  return {
      [this](const JoinJob& join) { return this->join(join, self->current_sender()); },
      [this](PutValue& value) { put(std::move(value)); },
      [this](const GetValue& get) -> caf::result<bool, std::string> {
        const auto found = values.find(get.key);
        return {found != values.end(), found != values.end() ? found->second : std::string()};
      },
      [this](const CollectiveState& state) { consider(state); },
      [this](const RankEnded& ended) {
        end(ended);
        return true;
      },
      [this](const StopJob& message) { stop(message); },
  };
}

JoinAccepted CoordinatorState::join(const JoinJob& join, const caf::strong_actor_ptr& sender) {
  const auto refuse = [](std::string why) { return JoinAccepted{0, std::move(why)}; };
  if (join.job_id != options.job_id) return refuse("job id " + join.job_id + " is not this job's (" + options.job_id + ")");
  if (join.world_size != options.world_size) {
    return refuse("world size " + std::to_string(join.world_size) + " is not this job's (" + std::to_string(options.world_size) + ")");
  }
  if (join.rank < 0 || join.rank >= options.world_size) return refuse("rank " + std::to_string(join.rank) + " is outside the world size");
  if (members.contains(join.rank))
    return refuse("rank " + std::to_string(join.rank) + " has joined already: two processes have the same rank");
  for (const auto& [rank, member] : members) {
    if (member.joined.build_id != join.build_id) {
      return refuse("the program differs from rank " + std::to_string(rank) + "'s (build " + join.build_id + ", " + member.joined.build_id +
                    ")");
    }
    if (member.joined.config_hash != join.config_hash) {
      return refuse("the config differs from rank " + std::to_string(rank) +
                    "'s: start every rank with the same flags, file and environment");
    }
  }
  auto supervisor = caf::actor_cast<RankSupervisorActor>(sender);
  self->monitor(supervisor);
  members.emplace(join.rank, Member{supervisor, join, std::nullopt});
  if (aborted) self->send(supervisor, AbortJob{*aborted});
  return JoinAccepted{1, {}};
}

void CoordinatorState::consider(const CollectiveState& state) {
  auto& lane = stalled[state.lane];
  const bool asked =
      lane.contains(state.rank) && lane[state.rank].sequence == state.sequence && lane[state.rank].in_flight == state.in_flight;
  lane[state.rank] = state;
  if (state.in_flight && !asked) {
    for (const auto& [rank, member] : members) {
      if (rank != state.rank && !member.ended) self->send(member.supervisor, ReportCollectives{state.lane});
    }
  }
  std::vector<CollectiveState> states;
  for (const auto& [rank, newest] : lane) states.push_back(newest);
  if (const auto accused = diagnose(states)) abort(*accused);
}

void CoordinatorState::end(const RankEnded& ended) {
  const auto member = members.find(ended.rank);
  if (member == members.end() || member->second.ended) return;
  member->second.ended = ended.report;
  // A rank that was told to abort has nothing new to say.
  if (ended.report.code != ErrorCode::ok && ended.report.code != ErrorCode::interrupted) abort(ended.report);
}

void CoordinatorState::lost(const caf::down_msg& down) {
  for (auto& [rank, member] : members) {
    if (member.supervisor.address() != down.source || member.ended) continue;
    const ErrorReport report{ErrorCode::peer_lost,
                             rank,
                             {},
                             -1,
                             {},
                             "rank " + std::to_string(rank) + " died (its connection closed)",
                             "its log and exit status say why"};
    member.ended = report;
    abort(report);
    return;
  }
}

void CoordinatorState::abort(const ErrorReport& reason) {
  if (aborted) return;
  aborted = reason;
  for (const auto& [rank, member] : members) self->send(member.supervisor, AbortJob{reason});
}

void CoordinatorState::stop(const StopJob& stop) {
  for (const auto& [rank, member] : members) self->send(member.supervisor, stop);
}

}  // namespace troupe
