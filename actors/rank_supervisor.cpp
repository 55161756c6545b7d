#include "actors/rank_supervisor.hpp"

#include "actors/coordinator.hpp"

namespace troupe {

RankSupervisorActor::behavior_type rank_supervisor(RankSupervisorActor::stateful_pointer<RankSupervisorState> self,
                                                   RankSupervisorOptions options) {
  self->state.self = self;
  self->state.options = std::move(options);
  self->set_down_handler([self](caf::down_msg&) {
    const int rank = self->state.options.rank;
    self->state.abort({ErrorCode::peer_lost, rank, "rank supervisor", -1, {}, "the coordinator is gone", "see the launcher's output"});
  });
  if (self->state.options.coordinator) self->monitor(caf::actor_cast<caf::actor>(self->state.options.coordinator));
  self->delayed_send(self, self->state.options.check_interval, CheckLanes{});
  return self->state.make_behavior();
}

RankSupervisorActor::behavior_type RankSupervisorState::make_behavior() {
  return {
      [this](const JoinRank& request) { return join(request.timeout); },
      [this](const RegisterLane& lane) {
        lanes.push_back(lane);
        if (aborted) lane.communicator->abort(*aborted);
      },
      [this](const RankFailed& failed) { fail(failed.report); },
      [this](const AbortJob& job) { abort(job.report); },
      [this](const StopJob& stop) { options.status->stop_signal = stop.signal; },
      [this](const ReportCollectives& request) {
        for (const auto& lane : lanes) {
          if (lane.name == request.lane && options.coordinator)
            self->send(caf::actor_cast<CoordinatorActor>(options.coordinator), state_of(lane));
        }
      },
      [this](const CheckLanes&) { check_lanes(); },
      [this](const FinishRank& request) { return finish(request.report); },
  };
}

caf::result<JoinAccepted> RankSupervisorState::join(std::chrono::milliseconds timeout) {
  if (!options.coordinator) return JoinAccepted{};
  auto promise = self->make_response_promise<JoinAccepted>();
  self->request(caf::actor_cast<CoordinatorActor>(options.coordinator), timeout, options.join)
      .then([promise](const JoinAccepted& accepted) mutable { promise.deliver(accepted); },
            [promise](caf::error& error) mutable {
              promise.deliver(JoinAccepted{0, "the coordinator did not answer (" + caf::to_string(error) + ")"});
            });
  return promise;
}

void RankSupervisorState::fail(const ErrorReport& report) {
  if (aborted) return;  // what fails after an abort fails because of it
  abort(report);
  if (options.coordinator) caf::anon_send(caf::actor_cast<CoordinatorActor>(options.coordinator), RankEnded{options.rank, report});
}

void RankSupervisorState::abort(const ErrorReport& reason) {
  if (aborted) return;
  aborted = reason;
  if (options.rendezvous) options.rendezvous->abort(reason);
  for (const auto& lane : lanes) lane.communicator->abort(reason);
  if (options.compute) caf::anon_send(options.compute, AbortJob{reason});
}

CollectiveState RankSupervisorState::state_of(const RegisterLane& lane) const {
  auto& ledger = lane.communicator->ledger();
  CollectiveState state;
  state.rank = options.rank;
  state.lane = lane.name;
  state.step = ledger.step();
  state.ended = options.status->loop_ended;
  state.sequence = ledger.finished_count();
  if (const auto record = ledger.in_flight()) {
    state.in_flight = true;
    state.sequence = record->sequence;
    state.fingerprint = record->fingerprint();
    state.what = record->describe();
    state.waited_ms = static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count() - record->started_ns) / 1e6;
  }
  return state;
}

void RankSupervisorState::check_lanes() {
  if (options.coordinator && !aborted) {
    for (const auto& lane : lanes) {
      const auto state = state_of(lane);
      if (state.in_flight && state.waited_ms > static_cast<double>(options.stall_after.count())) {
        self->send(caf::actor_cast<CoordinatorActor>(options.coordinator), state);
      }
    }
  }
  self->delayed_send(self, options.check_interval, CheckLanes{});
}

caf::result<bool> RankSupervisorState::finish(const ErrorReport& report) {
  if (!options.coordinator) return true;
  if (aborted && report.code != ErrorCode::ok) return true;  // told already
  return self->delegate(caf::actor_cast<CoordinatorActor>(options.coordinator), RankEnded{options.rank, report});
}

}  // namespace troupe
