// Coordinator and checkpoints: the second phase begins when every rank has written its part.
#include <algorithm>

#include "actors/coordinator/coordinator.hpp"
#include "actors/messages/message_limits.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kEndedSaves = 8;  // that are remembered for ranks that ask late
constexpr auto kSlowSave = 60s;

}  // namespace

void CoordinatorState::part_saved(const PartSaved& part) {
  const auto found = processes.find(part.process.slot);
  if (found == processes.end() || found->second.joined.process != part.process) return;
  for (const auto& ended : ended_saves) {
    if (ended.attempt == part.attempt) return self->send(found->second.supervisor, ended);
  }
  auto save = std::find_if(saves.begin(), saves.end(),
                           [&](const auto& known) { return known.round.attempt() == part.attempt; });
  if (save == saves.end()) {
    std::vector<ProcessId> members;
    for (const auto& member : current.members) members.push_back(member.process);
    const bool is_of_now =
        part.generation == current.generation && members.size() == static_cast<std::size_t>(part.ranks);
    saves.push_back({SaveRound(part.attempt, std::move(members), part.best), now()});
    save = saves.end() - 1;
    // Who died before the first part was written is nobody's news any more.
    for (const auto& member : current.members) {
      const auto process = processes.find(member.process.slot);
      const bool awaited = process == processes.end() && options.resumed;
      const bool alive =
          process != processes.end() && process->second.joined.process == member.process && !process->second.ended;
      if (!alive && !awaited) save->round.lost(member.process, "it is gone");
      if (alive && process->second.interrupted) save->round.interrupted(*process->second.interrupted);
    }
    if (!is_of_now) {
      save->round.published(failed_save(part.attempt, {ErrorCode::peer_lost,
                                                       -1,
                                                       "coordinator",
                                                       part.attempt.step,
                                                       "saving a checkpoint",
                                                       "a rank was lost before all had written their parts",
                                                       {}}));
    }
  }
  save->round.written(part);
  go_on_with_saves();
}

void CoordinatorState::published(const CheckpointPublished& message) {
  if (is_nonsense(problem_with(message))) return;
  const auto save = std::find_if(saves.begin(), saves.end(),
                                 [&](const auto& known) { return known.round.attempt() == message.ended.attempt; });
  if (save != saves.end()) {
    save->round.published(message.ended);
    go_on_with_saves();
  } else if (std::none_of(ended_saves.begin(), ended_saves.end(),
                          [&](const auto& ended) { return ended.attempt == message.ended.attempt; })) {
    remember(message.ended);  // from before this coordinator's time
  }
}

void CoordinatorState::interrupted_in_saves(const RankInterrupted& report) {
  for (auto& save : saves) save.round.interrupted(report);
  go_on_with_saves();
}

void CoordinatorState::lost_in_saves(const ProcessId& process, const std::string& why) {
  for (auto& save : saves) save.round.lost(process, why);
  go_on_with_saves();
}

void CoordinatorState::go_on_with_saves() {
  for (auto save = saves.begin(); save != saves.end();) {
    const auto decision = save->round.decide();
    if (decision.action == SaveRound::Action::publish) {
      const auto publisher = processes.find(decision.publisher.slot);
      if (publisher != processes.end() && publisher->second.joined.process == decision.publisher &&
          !publisher->second.ended) {
        self->send(publisher->second.supervisor, save->round.order());
      } else {
        save->round.lost(decision.publisher, "it is gone");
        continue;  // who is next?
      }
    }
    if (decision.action != SaveRound::Action::end) {
      ++save;
      continue;
    }
    remember(decision.ended);
    for (const auto& [slot, process] : processes) {
      if (!process.ended) self->send(process.supervisor, decision.ended);
    }
    save = saves.erase(save);
  }
}

void CoordinatorState::remember(const SaveEnded& ended) {
  ended_saves.push_back(ended);
  if (ended_saves.size() > kEndedSaves) ended_saves.pop_front();
}

void CoordinatorState::tell_of_slow_saves() {
  for (auto& save : saves) {
    if (now() - save.told < kSlowSave) continue;
    save.told = now();
    std::string ranks;
    for (const int rank : save.round.missing()) ranks += (ranks.empty() ? " " : ", ") + std::to_string(rank);
    say("the checkpoint of step " + std::to_string(save.round.attempt().step) + " still waits for " +
        (ranks.empty() ? std::string("the disk") : "the part of rank" + ranks));
  }
}

}  // namespace troupe
