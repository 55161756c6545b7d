// Coordinator between two generations: why one is over, who makes the next.
#include "actors/coordinator/coordinator.hpp"

#include <algorithm>

#include "actors/messages/message_limits.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kProof = 1'000ms;  // how long to wait for an agent's word on how a process ended
constexpr int kFruitless = 3;

}  // namespace

void CoordinatorState::interrupted(const RankInterrupted& report) {
  if (phase == Phase::over || is_nonsense(problem_with(report)) ||
      is_stale(report.generation, "report of an interrupted rank"))
    return;
  const auto found = processes.find(report.process.slot);
  if (found == processes.end() || found->second.joined.process != report.process) {
    ++stale;
    return;
  }
  found->second.interrupted = report;
  found->second.heard = now();
  interrupted_in_saves(report);
  if (!options.recovery.enabled) {
    // Who is to blame shows in a moment: its connection closes, or it says so itself. Else this rank's word stands.
    if (phase == Phase::training) {
      phase = Phase::recovering;
      since = now();
    }
    return;
  }
  if (phase == Phase::training) {
    const auto code = report.hung ? ErrorCode::timeout : ErrorCode::peer_lost;
    recover({code, rank_of(report.process.slot), {}, report.steps_done, {}, report.why, {}});
  } else {
    unheard.erase(report.process.slot);
    plan_if_all_are_heard();
  }
}

void CoordinatorState::lose(int number, const std::string& why, bool proved) {
  auto& process = processes.at(number);
  const auto rank = rank_of(number);
  const bool was_member = process.member && member_rank(process.joined.process) >= 0;
  const ErrorReport report{ErrorCode::peer_lost,
                           rank,
                           {},
                           -1,
                           {},
                           "rank " + std::to_string(rank) + " died (" + why + ")",
                           "its log and exit status say why"};
  process.ended = report;
  unheard.erase(number);
  if (phase == Phase::over) return;
  lost_in_saves(process.joined.process, why);
  if (!was_member) {
    say("the process in slot " + std::to_string(number) + " is gone (" + why + ")");
    if (phase == Phase::forming) return abort(report);
  } else if (!options.recovery.enabled) {
    return abort(report);
  } else if (!proved) {
    unproved.push_back(process.joined.process);
  }
  if (!process.hurt) slots[number].deaths.push_back(now());
  if (proved) replace(number);
  if (was_member && phase == Phase::training) {
    recover(report);
  } else if (phase == Phase::recovering) {
    plan();
  }
}

// Lost until its agent says that it is dead.
void CoordinatorState::fence(int slot, const std::string& why) {
  auto& process = processes.at(slot);
  process.fenced = true;
  const auto agent = agents.find(process.joined.host);
  if (agent != agents.end()) self->send(agent->second, KillRank{process.joined.process, why});
  self->send(process.supervisor, FenceRank{process.joined.process, why});
  if (phase == Phase::recovering) {
    since = now();  // its replacement has all its time
    say("rank " + std::to_string(rank_of(slot)) + " is killed: " + why);
  }
  lose(slot, why, false);
}

void CoordinatorState::recover(const ErrorReport& reason) {
  phase = Phase::recovering;
  interruption = reason;
  since = now();
  say((reason.code == ErrorCode::ok ? "" : "generation " + std::to_string(current.generation) + " is interrupted: ") +
      reason.cause);
  unheard.clear();
  for (auto& [slot, process] : processes) {
    if (!process.member || process.ended) continue;
    self->send(process.supervisor, InterruptRanks{current.generation, reason});
    if (!process.interrupted) unheard.insert(slot);
  }
  plan_if_all_are_heard();
}

// A plan looks at every rank, so it is not made for every report of one: with the last of them, and ten times a second.
void CoordinatorState::plan_if_all_are_heard() {
  if (unheard.empty()) plan();
}

// After a restart: members that the journal names are back, or dead for all that their agent knows, or, when they are
// late, not to be reached. Before that nothing is to be decided about who goes on.
bool CoordinatorState::all_accounted_for(bool late) {
  if (!options.resumed) return true;
  std::vector<const Member*> missing;
  for (const auto& member : current.members) {
    if (processes.contains(member.process.slot)) continue;
    missing.push_back(&member);
    if (!late && std::find(gone.begin(), gone.end(), member.process.slot) == gone.end()) return false;
  }
  options.resumed.reset();
  for (const auto* member : missing) {
    const int slot = member->process.slot;
    slots[slot].host = member->host;
    lost_in_saves(member->process, "it did not come back");
    if (std::find(gone.begin(), gone.end(), slot) == gone.end()) {
      // It stands still, perhaps with an order of the coordinator before: it must not wake up and do it.
      unproved.push_back(member->process);
      const auto agent = agents.find(member->host);
      if (agent != agents.end())
        self->send(agent->second, KillRank{member->process, "it did not come back to the restarted coordinator"});
    } else if (!slots[slot].starting) {
      replace(slot);
    }
  }
  return true;
}

namespace {

/// Why the job can't go on where rank `finished` has ended well. `alone`: all others live, so it is what they missed.
ErrorReport end_of_one(int finished, bool alone) {
  const auto name = "rank " + std::to_string(finished);
  if (alone) {
    return {ErrorCode::mismatch,
            -1,
            {},
            -1,
            {},
            name + " has left the training loop while the others go on",
            "where ranks have unequal amounts of data, the loop goes through Rank::uneven"};
  }
  return {ErrorCode::peer_lost,
          -1,
          {},
          -1,
          {},
          "a rank was lost while " + name + " had finished",
          "start again with --resume latest"};
}

}  // namespace

void CoordinatorState::plan() {
  if (phase == Phase::training || !all_accounted_for(now() - begun > options.recovery.fence_after)) return;
  MembershipQuestion question;
  question.world_size = options.world_size;
  question.min_ranks = options.recovery.enabled ? options.recovery.min_ranks : options.world_size;
  question.current = current;
  question.min_start =
      options.recovery.enabled && options.recovery.min_start > 0 ? options.recovery.min_start : options.world_size;
  for (const auto& [number, slot] : slots) question.absent += slot.absent ? 1 : 0;
  question.unreachable = static_cast<int>(unproved.size());
  question.waited = std::chrono::duration_cast<std::chrono::milliseconds>(now() - since);
  question.replace_timeout = phase == Phase::forming ? options.recovery.last_call : options.recovery.replace_timeout;
  int finished = -1;  // a rank that has ended well, and how many of them
  std::size_t ended_well = 0;
  for (const auto& member : current.members) {
    const auto found = processes.find(member.process.slot);
    if (found == processes.end() || found->second.joined.process != member.process) continue;
    const auto& process = found->second;
    if (!process.ended) question.survivors.push_back({member, process.interrupted});
    if (process.ended && (process.ended->code == ErrorCode::ok || process.ended->code == ErrorCode::interrupted))
      finished = rank_of(member.process.slot), ++ended_well;
  }
  if (finished >= 0)
    return abort(end_of_one(finished, question.survivors.size() + ended_well == current.members.size()));
  for (const auto& [slot, process] : processes) {
    if (!process.member && !process.ended && !process.fenced)
      question.candidates.push_back({process.joined.process, process.joined.host, process.joined.spare});
  }
  for (const auto& [number, slot] : slots) question.replacements_coming += slot.starting ? 1 : 0;
  // An agent is about to say how its process ended.
  for (const auto& process : unproved) {
    if (agents.contains(slots[process.slot].host) && question.waited < kProof) return;
  }

  auto answer = options.plan(question);
  using Action = MembershipAnswer::Action;
  if (answer.action == Action::wait) {
    if (phase == Phase::recovering && question.waited > options.recovery.hang_after) {
      for (const auto& survivor : question.survivors) {
        if (!survivor.report)
          return fence(survivor.member.process.slot,
                       "it hangs: it did not leave its step within " + std::to_string(question.waited.count()) + " ms");
      }
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
    if (answer.link_fault) slots[answer.expelled.slot].held_until = now() + options.recovery.link_hold_down;
    fence(answer.expelled.slot, answer.reason);
  } else if (answer.action == Action::start_over) {
    abort({ErrorCode::state_lost, -1, {}, -1, "recovery", answer.reason, "start again with --resume latest"});
  } else if (unproved.empty() || question.waited > options.recovery.park_after) {
    int writer = -1;
    for (const auto& survivor : question.survivors) {
      if (writer < 0) writer = member_rank(survivor.member.process);
    }
    if (phase == Phase::forming)
      return abort(
          {ErrorCode::unavailable, -1, {}, -1, "start", answer.reason, "see which host failed, or lower --min-ranks"});
    abort({ErrorCode::parked, writer, {}, -1, "recovery", answer.reason, "start again with --resume latest"});
  }
}

void CoordinatorState::announce(Membership next) {
  if (next.resume_step > last_resume || phase == Phase::forming) fruitless = 0;
  last_resume = next.resume_step;
  if (!next.only_adds_to(current) && ++fruitless > kFruitless + 1) {
    return abort(
        {ErrorCode::aborted,
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
    say("generation " + std::to_string(next.generation) + ": " + next.reason + " (after " + std::to_string(spent) +
        " ms)");
  }
  make_current(std::move(next));
  unproved.clear();
  unheard.clear();
  stalled.clear();
  values.clear();
  phase = Phase::training;
  since = now();
  const auto announcement = caf::make_message(current);  // one for all: it names every rank
  for (auto& [slot, process] : processes) {
    process.interrupted.reset();
    process.member = !process.ended && member_rank(process.joined.process) >= 0;
    if (process.member) caf::anon_send(caf::actor_cast<caf::actor>(process.supervisor), announcement);
  }
}

}  // namespace troupe
