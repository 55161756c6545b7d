// Coordinator between two generations: why one is over, who makes the next.
#include <algorithm>
#include <utility>

#include "actors/coordinator/coordinator.hpp"
#include "actors/messages/message_limits.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using Action = MembershipAnswer::Action;

constexpr auto kProof = 1'000ms;  // how long to wait for an agent's word on how a process ended
constexpr const char* kStartAgain = "start again with --resume auto";

/// Why the job can't go on where rank `finished` has ended well. `alone`: all others live, so it is what they missed.
ErrorReport end_of_one(int finished, bool alone) {
  const auto name = "rank " + std::to_string(finished);
  if (alone) {
    return {.code = ErrorCode::mismatch,
            .cause = name + " has left the training loop while the others go on",
            .remedy = "if ranks have unequal amounts of data, wrap the data in Rank::uneven"};
  }
  return {
      .code = ErrorCode::peer_lost, .cause = "a rank was lost after " + name + " had finished", .remedy = kStartAgain};
}

std::chrono::milliseconds in_ms(caf::actor_clock::duration_type spent) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(spent);
}

ErrorReport death_of(int rank, const std::string& why) {
  return {.code = ErrorCode::peer_lost,
          .rank = rank,
          .cause = "rank " + std::to_string(rank) + " died (" + why + ")",
          .remedy = "its log and exit status say why"};
}

// All but the processes.
MembershipQuestion question_of(const CoordinatorState& state) {
  const auto& recovery = state.options.recovery;
  const int world_size = state.options.world_size;
  const bool forming = state.phase == CoordinatorState::Phase::forming;
  return {.world_size = world_size,
          .min_ranks = recovery.enabled ? recovery.min_ranks : world_size,
          .current = state.processes.current(),
          .unreachable = static_cast<int>(state.unproved.size()),
          .absent = state.slots.absent(),
          .min_start = recovery.enabled && recovery.min_start > 0 ? recovery.min_start : world_size,
          .replacements_coming = state.slots.starting(),
          .waited = in_ms(state.now() - state.since),
          .replace_timeout = forming ? recovery.last_call : recovery.replace_timeout};
}

// A survivor that has not left its step by now hangs, so it is expelled.
void expel_hung(const MembershipQuestion& question, CoordinatorState& state, MembershipAnswer& answer) {
  for (const auto& survivor : question.survivors) {
    if (survivor.report) continue;
    const auto& process = survivor.member.process;
    answer.action = Action::expel;
    answer.expelled = process;
    answer.reason = "it hangs: it did not leave its step within " + std::to_string(question.waited.count()) + " ms";
    if (const auto* hung = state.processes.find(process))
      state.slots.explain_death(process.slot, {"a hang", hung->steps_made()});
    return;
  }
}

// Another life would end of the same: the survivors save what there is.
MembershipAnswer park_once_heard(const MembershipQuestion& question, const std::string& fault) {
  const bool heard = std::all_of(question.survivors.begin(), question.survivors.end(),
                                 [](const auto& s) { return s.report.has_value(); });
  return {.action = heard ? Action::park : Action::wait,
          .reason = fault + ": a fault of the program, which a restart would repeat"};
}

// It has taken over without a journal. No rank that trained is back in time: what they had is lost.
MembershipAnswer unknown_job(const MembershipQuestion& question, const RecoveryOptions& recovery) {
  return {.action = question.waited > recovery.fence_after ? Action::start_over : Action::wait,
          .reason = "no process is left that knows which ranks trained"};
}

MembershipAnswer answer_to(const MembershipQuestion& question, CoordinatorState& state) {
  if (state.phase == CoordinatorState::Phase::forming && state.resumption.guesses())
    return unknown_job(question, state.options.recovery);
  const auto& fault = state.slots.program_fault();
  auto answer = fault.empty() ? state.options.plan(question) : park_once_heard(question, fault);
  if (answer.action == Action::wait && state.phase == CoordinatorState::Phase::recovering &&
      !state.interruption.parting() && question.waited > state.options.recovery.hang_after)
    expel_hung(question, state, answer);
  return answer;
}

// Why a job ends that can't go on; nullopt: it waits.
std::optional<ErrorReport> end_of_job(const MembershipQuestion& question, const MembershipAnswer& answer, bool forming,
                                      const CoordinatorOptions& options) {
  if (answer.action == Action::wait) {
    if (!forming || question.waited <= options.join_timeout) return std::nullopt;
    return ErrorReport{.code = ErrorCode::unavailable,
                       .operation = "start",
                       .cause = answer.reason + " within " + std::to_string(options.join_timeout.count() / 1000) + " s",
                       .remedy = "check that every host is reachable and every rank is started"};
  }
  ErrorReport end{
      .code = ErrorCode::state_lost, .operation = "recovery", .cause = answer.reason, .remedy = kStartAgain};
  if (answer.action == Action::start_over) return end;
  if (question.unreachable > 0 && question.waited <= options.recovery.park_after) return std::nullopt;
  if (forming) {
    end.code = ErrorCode::unavailable;
    end.operation = "start";
    end.remedy = "see which host failed, or lower --min-ranks";
  } else {
    end.code = ErrorCode::parked;
    if (!question.survivors.empty()) end.rank = question.current.rank_of(question.survivors.front().member.process);
  }
  return end;
}

}  // namespace

ErrorReport report_of(const RankInterrupted& interrupted, int rank) {
  return {.code = interrupted.hung ? ErrorCode::timeout : ErrorCode::peer_lost,
          .rank = rank,
          .step = interrupted.steps_done,
          .cause = interrupted.why};
}

void CoordinatorState::interrupted(const RankInterrupted& report) {
  const int slot = report.process.slot;
  if (phase == Phase::over || filter.is_nonsense(problem_with(report)) ||
      filter.is_stale(report.generation, processes.current().generation, "report of an interrupted rank"))
    return;
  auto* process = processes.find(report.process);
  if (process == nullptr) return filter.count_stale();
  process->interrupted = report;
  detector.heard(slot, now());
  send(saves.interrupted(report, processes));
  const bool failed = phase == Phase::training || (interruption.parting() && !report.parted);  // others may wait for it
  if (failed && options.recovery.enabled) {
    recover(report_of(report, processes.rank_of(slot)), report.parted);
  } else if (phase == Phase::training) {
    // Who is to blame shows in a moment: its connection closes, or it says so itself. Else this rank's word stands.
    enter(Phase::recovering);
  } else if (options.recovery.enabled) {
    interruption.heard(slot);
    if (interruption.all_heard()) plan();
  }
}

void CoordinatorState::lose(int slot, const std::string& why, bool proved) {
  auto& process = *processes.in_slot(slot);
  const bool was_member = process.member && processes.member_rank(process.joined.process) >= 0;
  const auto report = death_of(processes.rank_of(slot), why);
  process.ended = report;
  interruption.heard(slot);
  if (phase == Phase::over) return;
  send(saves.lost(process.joined.process, why, processes));
  if (!was_member) {
    options.log("the process in slot " + std::to_string(slot) + " is gone (" + why + ")");
    if (phase == Phase::forming && options.life == 0) return abort(report);
  } else if (!options.recovery.enabled) {
    return abort(report);
  } else if (!proved) {
    unproved.push_back(process.joined.process);
  }
  if (!process.hurt) slots.add_death(slot, now());
  if (proved) replace(slot);
  if (was_member && (phase == Phase::training || interruption.parting())) {
    recover(report);
  } else if (phase == Phase::recovering) {
    plan();
  }
}

// Lost until its agent says that it is dead.
void CoordinatorState::fence(int slot, const std::string& why) {
  auto& process = *processes.in_slot(slot);
  process.fenced = true;
  kill(process.joined.process, process.joined.host, why);
  self->send(process.supervisor, FenceRank{process.joined.process, why});
  if (phase == Phase::recovering) {
    since = now();  // its replacement has all its time
    options.log("rank " + std::to_string(processes.rank_of(slot)) + " is killed: " + why);
  }
  lose(slot, why, false);
}

void CoordinatorState::recover(const ErrorReport& reason, bool parted) {
  const auto generation = "generation " + std::to_string(processes.current().generation);
  enter(Phase::recovering);
  if (!parted) options.log((reason.code == ErrorCode::ok ? "" : generation + " is interrupted: ") + reason.cause);
  send(interruption.begin(reason, parted, processes));
  if (interruption.all_heard()) plan();
}

// Looks at every rank, so it is not called for every report of one: with the last of them, and ten times a second.
void CoordinatorState::plan() {
  if (phase == Phase::training || !settle_resumption(*this)) return;
  auto question = question_of(*this);
  const auto finished = processes.describe(question);
  notices.mark(question);
  if (!finished.empty()) {
    const bool alone = question.survivors.size() + finished.size() == question.current.members.size();
    return abort(end_of_one(finished.back(), alone));
  }
  // An agent is about to say how its process ended.
  for (const auto& process : unproved) {
    if (slots.has_agent(process.slot) && question.waited < kProof) return;
  }

  auto answer = answer_to(question, *this);
  if (answer.action == Action::go) return announce(std::move(answer.next));
  if (answer.action == Action::expel) {
    if (answer.link_fault) slots.hold_down(answer.expelled.slot, now());
    return fence(answer.expelled.slot, answer.reason);
  }
  if (const auto end = end_of_job(question, answer, phase == Phase::forming, options))
    abort(*end, slots.program_fault().empty() ? 0 : exit_code(ErrorCode::internal));
}

void CoordinatorState::announce(Membership next) {
  if (const auto fruitless = progress.judge(next, processes.current())) return abort(*fruitless);
  next.generation += resumption.leap();
  write_down(next, options);
  if (phase == Phase::recovering)
    options.log("generation " + std::to_string(next.generation) + ": " + next.reason + " (after " +
                std::to_string(in_ms(now() - since).count()) + " ms)");
  processes.make_current(std::move(next), interruption.end());
  unproved.clear();
  stalls.clear();
  values.clear();
  enter(Phase::training);
  const auto announcement = caf::make_message(processes.current());  // one for all: it names every rank
  for (const auto& [slot, process] : processes.all()) {
    if (process.member) caf::anon_send(caf::actor_cast<caf::actor>(process.supervisor), announcement);
  }
}

}  // namespace troupe
