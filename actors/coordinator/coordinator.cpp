#include "actors/coordinator/coordinator.hpp"

#include <utility>

#include "actors/messages/message_limits.hpp"

namespace troupe {

namespace {

// Why a process is none of this job's; empty: it is.
std::string refusal(const JoinJob& join, const CoordinatorOptions& options) {
  const int slot = join.process.slot;
  if (auto problem = problem_with(join); !problem.empty()) return problem;
  if (join.job_id != options.job_id) return "job id " + join.job_id + " is not this job's (" + options.job_id + ")";
  if (join.world_size != options.world_size) {
    return "world size " + std::to_string(join.world_size) + " is not this job's (" +
           std::to_string(options.world_size) + ")";
  }
  if (slot < 0 || (slot >= options.world_size && !options.recovery.enabled))
    return "rank " + std::to_string(slot) + " is outside the world size";
  return {};
}

std::string spare_line(const JoinJob& join) {
  return "slot " + std::to_string(join.process.slot) + " on " + join.host +
         " joins as a spare: it will take the place of a lost rank, and copy the model from another one";
}

// A process whose device has failed can do nothing more, perhaps not even end: it is killed, and replaced.
bool loses_device(CoordinatorState& state, const JoinedProcess& process, const ErrorReport& report) {
  if (report.code != ErrorCode::device_lost || !state.options.recovery.enabled ||
      state.phase == CoordinatorState::Phase::over)
    return false;
  const int slot = process.joined.process.slot;
  state.slots.explain_death(slot, {report.cause, process.steps_made()});
  state.fence(slot, report.cause);
  return true;
}

}  // namespace

CoordinatorActor::behavior_type coordinator(CoordinatorActor::stateful_pointer<CoordinatorState> self,
                                            CoordinatorOptions options) {
  self->state.self = self;
  self->state.options = std::move(options);
  self->state.start();
  self->set_down_handler([self](caf::down_msg& message) { self->state.down(message); });
  self->delayed_send(self, kCoordinatorTick, CoordinatorTick{});
  return self->state.make_behavior();
}

void CoordinatorState::start() {
  if (!options.log) options.log = [](const std::string&) {};
  since = now();
  slots = SlotTable(options.recovery, options.world_size);
  if (options.chaos) chaos = ChaosInjector(*options.chaos, options.world_size);
  detector = FailureDetector(options.recovery, since);
  filter = MessageFilter(options.log);
  values = RendezvousStore(options.world_size);
  resumption = Resumption(options.life, options.without_journal);
  if (options.resumed) {
    // The journal says who was in; they are given time to come back, then those that did not are lost.
    resumption.begin(since + options.recovery.fence_after + options.comes_back_late);
    processes.make_current(*options.resumed);
    phase = Phase::training;
  }
}

CoordinatorActor::behavior_type CoordinatorState::make_behavior() {
  // What only its sender may say.
  const auto own = [this]<class Message>(void (CoordinatorState::*handle)(const Message&)) {
    return [this, handle](const Message& message) {
      if (senders.may_say(message, self->current_sender())) (this->*handle)(message);
    };
  };
  return {
      [this](const JoinJob& join) { return this->join(join, self->current_sender()); },
      [this](const JoinNode& node) { return join_node(node, self->current_sender()); },
      [this](PutValue& value) {
        if (!filter.is_nonsense(problem_with(value))) senders.put(std::move(value), self->current_sender(), values);
      },
      [this](const GetValue& get) -> caf::result<bool, std::string> {
        const auto* value = get.key == kRunKey ? &options.run : values.find(get.key);
        return {value != nullptr, value != nullptr ? *value : std::string()};
      },
      [this](const Membership& known) { take_over(*this, known); },
      own(&CoordinatorState::consider),
      own(&CoordinatorState::heard),
      own(&CoordinatorState::interrupted),
      [this](const LeaveNotice& notice) {
        if (senders.may_say(notice, self->current_sender())) take_notice(*this, notice);
      },
      own(&CoordinatorState::exited),
      own(&CoordinatorState::saved),
      own(&CoordinatorState::published),
      own(&CoordinatorState::loop_done),
      [this](const RankEnded& message) {
        if (senders.may_say(message, self->current_sender())) ended(message);
        return true;
      },
      [this](const CoordinatorTick&) { tick(); },
  };
}

void CoordinatorState::saved(const PartSaved& part) {
  send(saves.part_saved(part, processes, resumption.pending(), now()));
}

void CoordinatorState::published(const CheckpointPublished& message) {
  if (!filter.is_nonsense(problem_with(message))) send(saves.published(message.ended, processes));
}

void CoordinatorState::loop_done(const LoopDone& done) {
  processes.loop_done(done);
  if (phase == Phase::training) send(processes.leave_loop());
}

void CoordinatorState::enter(Phase next) {
  phase = next;
  since = now();
}

JoinAccepted CoordinatorState::join(const JoinJob& join, const caf::strong_actor_ptr& sender) {
  JoinAccepted accepted{{}, options.recovery.park_after.count()};
  const int slot = join.process.slot;
  if (auto why = refusal(join, options); !why.empty()) return {std::move(why)};
  if (!sender) return {"a rank that joins must identify itself"};
  const auto supervisor = caf::actor_cast<RankSupervisorActor>(sender);
  if (phase == Phase::over) {
    if (verdict.report.code != ErrorCode::ok) return {"the job is over: " + verdict.report.to_string()};
    self->send(supervisor, AbortJob{verdict.report});  // it was to replace a rank that was lost at the end
    return accepted;
  }
  const bool knows_more = resumption.knows_less(join, processes.current());
  if (notices.has(join.process) && !knows_more && !processes.is_member(join)) {  // it has left, and missed the word
    self->send(supervisor, AbortJob{notices.reason(join.process)});
    return accepted;
  }
  if (auto why = processes.refusal(join, knows_more); !why.empty()) return {std::move(why)};
  if (auto why = slots.refusal(join.process); !why.empty()) return {std::move(why)};
  notices.joined(join.process);

  if (!processes.knows(supervisor.address())) self->monitor(supervisor);
  processes.add({.supervisor = supervisor, .joined = join, .member = processes.is_member(join)});
  detector.joined(slot, now());
  std::erase(unproved, join.process);
  slots.set_starting(slot, false);
  slots.set_host(slot, join.host);
  if (join.spare || slot >= options.world_size) options.log(spare_line(join));
  if (knows_more) {
    self->send(supervisor, ReportMembership{});
  } else if (processes.in_slot(slot)->member) {
    tell_again(join, supervisor);
  } else if (phase == Phase::training && processes.current().world_size() < options.world_size) {
    recover({.code = ErrorCode::ok, .cause = "slot " + std::to_string(slot) + " on " + join.host + " joins"});
  } else if (phase == Phase::recovering ||
             (phase == Phase::forming && static_cast<int>(processes.all().size()) >= options.world_size)) {
    if (interruption.all_heard()) plan();  // one that is late is looked for ten times a second
  }
  return accepted;
}

// A member has come back over another connection: what was sent over the one that broke may be lost.
void CoordinatorState::tell_again(const JoinJob& join, const RankSupervisorActor& supervisor) {
  const auto& current = processes.current();
  if (join.generation < current.generation) self->send(supervisor, current);
  if (phase == Phase::recovering) send(interruption.came_back(join.process.slot, processes));
  send(saves.came_back(join.process, processes));
}

void CoordinatorState::send(const RankMessages& messages) {
  for (const auto& [to, message] : messages)
    std::visit([this, &to = to](const auto& content) { self->send(to, content); }, message);
}

void CoordinatorState::ended(const RankEnded& ended) {
  auto* process = processes.find(ended.process);
  if (process == nullptr || process->ended || loses_device(*this, *process, ended.report)) return;
  process->ended = ended.report;
  if (phase == Phase::over) return;
  // A rank that was told to abort has nothing new to say.
  if (ended.report.code != ErrorCode::ok && ended.report.code != ErrorCode::interrupted) return abort(ended.report);
  if (processes.all_ended()) end_job(end_of_all(*this, ended.report));
  if (phase == Phase::training) send(processes.leave_loop());
  interruption.heard(ended.process.slot);
  if (phase == Phase::recovering && interruption.all_heard()) plan();
}

void CoordinatorState::abort(const ErrorReport& reason, int code) {
  if (phase != Phase::over) end_job({reason, code != 0 ? code : exit_code(reason.code)});
}

void CoordinatorState::end_job(const JobOver& end) {
  phase = Phase::over;
  verdict = end;
  if (const auto line = chaos.end(); !line.empty()) options.log(line);
  for (const auto& [slot, process] : processes.all()) {
    if (!process.ended || end.report.code != ErrorCode::ok) self->send(process.supervisor, AbortJob{verdict.report});
  }
  for (const auto& [host, agent] : slots.agents()) self->send(agent, verdict);
}

}  // namespace troupe
