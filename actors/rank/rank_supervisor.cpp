#include "actors/rank/rank_supervisor.hpp"

#include <algorithm>
#include <thread>

#include "actors/messages/coordinator_actor.hpp"
#include "actors/rank/ledger_dump.hpp"

namespace troupe {
namespace {

constexpr const char* kSupervisor = "rank supervisor";

double waited_ms(const CollectiveRecord& record, caf::actor_clock::time_point at) {
  return static_cast<double>(at.time_since_epoch().count() - record.started_ns) / 1e6;
}

}  // namespace

RankSupervisorActor::behavior_type rank_supervisor(RankSupervisorActor::stateful_pointer<RankSupervisorState> self,
                                                   RankSupervisorOptions options) {
  self->state.self = self;
  self->state.options = std::move(options);
  self->set_down_handler([self](caf::down_msg& down) {
    const auto& coordinator = self->state.options.coordinator;
    if (coordinator && coordinator->address() == down.source) self->state.lost_coordinator();
  });
  if (self->state.options.coordinator) self->monitor(caf::actor_cast<caf::actor>(self->state.options.coordinator));
  self->delayed_send(self, self->state.options.check_interval, CheckCommunicators{});
  return self->state.make_behavior();
}

RankSupervisorActor::behavior_type RankSupervisorState::make_behavior() {
  return {
      [this](const JoinRank& request) { return join(request.timeout); },
      [this](const RegisterCommunicator& communicator) { watch(communicator); },
      [this](const RegisterRendezvous& message) {
        rendezvous = message.rendezvous;
        if (aborted) rendezvous->abort(*aborted);
        if (message.generation <= interrupted) rendezvous->abort(interruption);
      },
      [this](const RankFailed& failed) { fail(failed.report); },
      [this](const RankInterrupted& report) {
        last_interrupted = report;
        tell_coordinator(report);
      },
      [this](const Membership& next) {
        if (!enter(next)) return;
        // As it came: it names every rank, and is not to be copied by each.
        place.membership = self->current_mailbox_element()->copy_content_to_message();
        if (options.compute) caf::anon_send(options.compute, place.membership);
      },
      [this](const ReportMembership&) {
        if (options.coordinator && !place.membership.empty())
          options.coordinator->enqueue(caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message_id(),
                                       place.membership, self->context());
      },
      [this](const InterruptRanks& message) { interrupt(message); },
      [this](const FenceRank& fence) {
        if (fence.process != options.join.process) return;
        abort({.code = ErrorCode::fenced, .rank = rank(), .actor = kSupervisor, .cause = fence.reason});
        options.coordinator = nullptr;  // from here on it is as silent as the dead
      },
      [this](const AbortJob& job) { abort(job.report); },
      [this](const ReportCollectives& request) {
        for (const auto& watched : communicators) {
          if (watched.name != request.communicator) continue;
          if (const auto state = state_of(watched, now())) tell_coordinator(*state);
        }
      },
      [this](const RegisterCheckpointer& message) { saves.connect(message.checkpointer); },
      [this](const PartSaved& part) { told_of_part(part); },
      [this](const PublishCheckpoint& order) { saves.tell_checkpointer(order); },
      [this](const CheckpointPublished& message) {
        tell_coordinator(CheckpointPublished{options.join.process, message.ended});
      },
      [this](const SaveEnded& ended) { saves.end(ended); },
      [this](const LoopDone& done) {
        loop_done = done;
        waits_to_leave = true;
        tell_coordinator(done);
      },
      [this](const LeaveLoop& leave) {
        if (leave.generation != place.generation || place.generation <= interrupted) return void(++stale);
        waits_to_leave = false;
        if (options.compute) caf::anon_send(options.compute, leave);
      },
      [this](const LeaveJob& leave) { options.status->leaves = leave.generation; },
      [this](const CoordinatorFound& found) { found_coordinator(found.coordinator); },
      [this](const CoordinatorBeat&) { heard_coordinator = now(); },
      [this](const InjectFault& fault) { inject(fault); },
      [this](const CheckCommunicators&) { check_communicators(); },
      [this](const FinishRank& request) { return finish(request.report); },
  };
}

caf::actor_clock::time_point RankSupervisorState::now() const { return self->clock().now(); }

int RankSupervisorState::rank() const { return place.rank >= 0 ? place.rank : options.join.process.slot; }

template <class Message>
void RankSupervisorState::tell_coordinator(const Message& message) {
  if (options.coordinator) self->send(caf::actor_cast<CoordinatorActor>(options.coordinator), message);
}

caf::result<JoinAccepted> RankSupervisorState::join(std::chrono::milliseconds timeout) {
  if (!options.coordinator && options.reconnect)
    return caf::make_error(caf::sec::request_receiver_down);  // it is looked for
  if (!options.coordinator) {
    Membership alone;
    alone.generation = 1;
    alone.members.push_back({options.join.process, options.join.host, false});
    if (enter(alone) && options.compute) caf::anon_send(options.compute, alone);
    return JoinAccepted{};
  }
  auto promise = self->make_response_promise<JoinAccepted>();
  self->request(caf::actor_cast<CoordinatorActor>(options.coordinator), timeout, options.join)
      .then(
          [this, promise](const JoinAccepted& accepted) mutable {
            park_after = std::chrono::milliseconds(accepted.park_after_ms);
            promise.deliver(accepted);
          },
          [this, promise](caf::error& error) mutable {
            if (options.reconnect) {  // the caller asks again, perhaps of the next coordinator
              promise.deliver(std::move(error));
              return;
            }
            promise.deliver(JoinAccepted{"the coordinator did not answer (" + caf::to_string(error) + ")"});
          });
  return promise;
}

// False: of a generation that is over.
bool RankSupervisorState::enter(const Membership& next) {
  if (next.generation <= place.generation) {
    ++stale;
    return false;
  }
  place = {next.generation, next.rank_of(options.join.process), {}};
  last_interrupted.reset();
  loop_done.reset();
  waits_to_leave = false;
  communicators.clear();
  rendezvous.reset();
  return true;
}

void RankSupervisorState::interrupt(const InterruptRanks& message) {
  if (message.generation != place.generation || message.generation <= interrupted) {
    ++stale;
    return;
  }
  interrupted = message.generation;
  interruption = message.reason;
  interruption.code = ErrorCode::aborted;
  dump_if_hung(message.reason);
  if (rendezvous) rendezvous->abort(interruption);
  for (const auto& watched : communicators) watched.abort(interruption);
  if (options.compute) caf::anon_send(options.compute, message);
}

void RankSupervisorState::fail(const ErrorReport& report) {
  if (aborted) return;  // what fails after an abort fails because of it
  abort(report);
  if (!options.coordinator) return;
  self->request(caf::actor_cast<CoordinatorActor>(options.coordinator), caf::infinite,
                RankEnded{options.join.process, report})
      .then([](bool) {}, [](caf::error&) {});  // gone: its DOWN comes too
}

std::string RankSupervisorState::dump_if_hung(const ErrorReport& reason) {
  const bool hung = reason.code == ErrorCode::timeout || reason.code == ErrorCode::mismatch;
  if (!hung || options.ledger_path.empty() || communicators.empty() || dumped == communicators.front().generation)
    return {};
  dumped = communicators.front().generation;
  auto path = dump_ledgers(options.ledger_path, rank(), communicators);
  if (options.log && !path.empty())
    options.log("the last collectives of rank " + std::to_string(rank()) + " are in " + path);
  return path;
}

void RankSupervisorState::abort(ErrorReport reason) {
  if (aborted) return;
  if (const auto path = dump_if_hung(reason); !path.empty())
    reason.remedy += (reason.remedy.empty() ? "" : ", ") + ("this rank's last collectives are in " + path);
  aborted = reason;
  let_go();
  if (rendezvous) rendezvous->abort(reason);
  for (const auto& watched : communicators) watched.abort(reason);
  saves.fail(reason);
  if (options.compute) caf::anon_send(options.compute, AbortJob{reason});
}

void RankSupervisorState::lost_coordinator() {
  options.coordinator = nullptr;
  if (options.status->job_over) return;
  if (!options.reconnect && options.status->loop_ended) return let_go();
  if (!options.reconnect)
    return abort({.code = ErrorCode::peer_lost,
                  .rank = rank(),
                  .actor = kSupervisor,
                  .cause = "the coordinator is gone",
                  .remedy = "see the launcher's output"});
  if (options.find_coordinator) return options.find_coordinator(caf::actor_cast<RankSupervisorActor>(self), park_after);
  // Connecting blocks, so a thread of its own does it; the rank trains on meanwhile. The address is an argument because
  // CAF 0.17 dereferences a null pointer where there is none.
  const auto address = caf::actor_cast<RankSupervisorActor>(self);
  self->home_system().spawn<caf::detached>(
      [reconnect = options.reconnect, status = options.status, patience = park_after](
          caf::event_based_actor*, const RankSupervisorActor& address) {
        caf::anon_send(address, CoordinatorFound{reconnect(patience, [&] { return status->job_over.load(); })});
      },
      address);
}

// Rank 0 saves what is committed: the side of a cut that has it, and nobody beside it.
void RankSupervisorState::park(const std::string& why) {
  if (options.status->loop_ended) return let_go();  // it has nothing left to save
  const auto seconds = std::to_string(static_cast<double>(park_after.count()) / 1000);
  abort({.code = ErrorCode::parked,
         .rank = 0,
         .actor = kSupervisor,
         .cause = why + " for " + seconds.substr(0, seconds.find('.') + 2) + " s",
         .remedy = "start again with --resume auto"});
}

void RankSupervisorState::found_coordinator(const caf::strong_actor_ptr& coordinator) {
  if (options.status->job_over) return;
  if (!coordinator) return park("there is no coordinator");
  heard_coordinator = now();
  options.coordinator = coordinator;
  self->monitor(caf::actor_cast<caf::actor>(coordinator));
  auto join = options.join;
  join.generation = place.generation;
  self->request(caf::actor_cast<CoordinatorActor>(coordinator), std::chrono::seconds(10), join)
      .then(
          [this, coordinator](const JoinAccepted& accepted) {
            if (!accepted.refused.empty())
              return abort({.code = ErrorCode::fenced,
                            .rank = rank(),
                            .actor = kSupervisor,
                            .operation = "join",
                            .cause = accepted.refused});
            park_after = std::chrono::milliseconds(accepted.park_after_ms);
            if (options.on_coordinator) options.on_coordinator(coordinator);
            if (last_interrupted) tell_coordinator(*last_interrupted);
            if (loop_done) tell_coordinator(*loop_done);
            if (saves.ended()) tell_coordinator(CheckpointPublished{options.join.process, *saves.ended()});
            if (saves.part()) tell_coordinator(*saves.part());
            if (end) tell_end();
          },
          [](caf::error&) {});  // gone again: its DOWN comes too
}

void RankSupervisorState::told_of_part(PartSaved part) {
  part.process = options.join.process;
  saves.part_saved(part);
  if (aborted) return saves.fail(*aborted);
  tell_coordinator(part);
}

void RankSupervisorState::watch(const RegisterCommunicator& communicator) {
  // A program may make a group for each step. The last ones' ledgers are kept: a hang may have been in one of them.
  constexpr std::size_t kMany = 64;
  if (communicators.size() > kMany)
    std::erase_if(communicators, [](const auto& watched) { return watched.communicator.expired(); });
  communicators.push_back(communicator);
  if (aborted) communicator.abort(*aborted);
  if (communicator.generation <= interrupted) communicator.abort(interruption);
}

std::optional<CollectiveState> RankSupervisorState::state_of(const RegisterCommunicator& watched,
                                                             caf::actor_clock::time_point at) const {
  const auto communicator = watched.communicator.lock();
  if (!communicator) return std::nullopt;
  const auto& ledger = communicator->ledger();
  CollectiveState state;
  state.rank = rank();
  state.generation = watched.generation;
  state.communicator = watched.name;
  state.step = ledger.step();
  state.ended = options.status->loop_ended || waits_to_leave;
  state.sequence = ledger.finished_count();
  // Of sends and receives no two ranks need do the same: they prove nothing against anybody.
  if (const auto record = ledger.in_flight(); record && !record->point_to_point()) {
    state.in_flight = true;
    state.sequence = record->sequence;
    state.fingerprint = record->fingerprint();
    state.what = record->describe();
    state.waited_ms = waited_ms(*record, at);
  }
  const auto program = std::find_if(communicators.begin(), communicators.end(),
                                    [](const auto& other) { return other.name == kProgramCommunicator; });
  const auto programs = program == communicators.end() ? nullptr : program->communicator.lock();
  if (!programs) return state;
  const auto& own = programs->ledger();
  state.awaits_reducer = options.status->awaits_reducer;
  state.program_sequence = own.finished_count();
  const auto record = own.in_flight();
  if (!record || record->point_to_point()) return state;
  state.program_sequence = record->sequence;
  // Long enough for the Reducer to have launched what Compute sent it before.
  if (2 * waited_ms(*record, at) > static_cast<double>(options.stall_after.count())) {
    state.program_what = record->describe();
    state.step = own.step();
  }
  return state;
}

void RankSupervisorState::check_communicators() {
  const auto at = now();
  if (at - last_check > 10 * options.check_interval) heard_coordinator = at;  // it is we who did not listen
  last_check = at;
  if (options.coordinator && !options.status->job_over && (place.generation > 0 || end) &&
      at - heard_coordinator > park_after)
    park("the coordinator can't be reached");
  if (options.coordinator && !aborted) {
    for (const auto& watched : communicators) {
      const auto state = state_of(watched, at);
      if (state && state->in_flight && state->waited_ms > static_cast<double>(options.stall_after.count()))
        tell_coordinator(*state);
    }
    tell_coordinator(Heartbeat{options.join.process, place.generation, options.status->steps_done});
  }
  self->delayed_send(self, options.check_interval, CheckCommunicators{});
}

void RankSupervisorState::inject(const InjectFault& fault) {
  if (aborted) return;
  switch (fault.kind) {
    case ChaosKind::nan: options.status->poisoned = true; break;
    case ChaosKind::net:
      for (const auto& watched : communicators)
        watched.abort({.code = ErrorCode::peer_lost,
                       .rank = rank(),
                       .actor = "chaos",
                       .cause = "its data connections were broken (--chaos)"});
      break;
    case ChaosKind::disk: saves.tell_checkpointer(fault); break;
    default:
      if (options.hurt) options.hurt(fault.kind, std::chrono::milliseconds(fault.lasts_ms));
  }
}

caf::result<bool> RankSupervisorState::finish(const ErrorReport& report) {
  if (options.status->job_over || (!options.coordinator && !options.reconnect)) return true;
  end = RankEnded{options.join.process, report};
  waits_for_end = self->make_response_promise<bool>();
  const auto promise = *waits_for_end;
  tell_end();
  return promise;
}

// Again to a coordinator that is found again, until one has heard it: it counts a rank that goes without a word as
// lost.
void RankSupervisorState::tell_end() {
  if (!options.coordinator) return;
  self->request(caf::actor_cast<CoordinatorActor>(options.coordinator), caf::infinite, *end)
      .then([this](bool) { let_go(); }, [](caf::error&) {});  // gone: its DOWN comes too
}

// Nothing is left to wait for.
void RankSupervisorState::let_go() {
  options.status->job_over = true;
  if (waits_for_end) waits_for_end->deliver(true);
  waits_for_end.reset();
}

}  // namespace troupe
