#include "actors/coordinator/save_rounds.hpp"

#include <algorithm>

namespace troupe {

SaveRounds::Save* SaveRounds::find(const SaveAttempt& attempt) {
  const auto found =
      std::find_if(saves_.begin(), saves_.end(), [&](const Save& save) { return save.round.attempt() == attempt; });
  return found != saves_.end() ? &*found : nullptr;
}

const SaveEnded* SaveRounds::find_ended(const SaveAttempt& attempt) const {
  const auto found =
      std::find_if(ended_.begin(), ended_.end(), [&](const SaveEnded& ended) { return ended.attempt == attempt; });
  return found != ended_.end() ? &*found : nullptr;
}

bool SaveRounds::awaits(const std::string& id) const {
  return !id.empty() &&
         std::none_of(ended_.begin(), ended_.end(), [&](const SaveEnded& ended) { return ended.attempt.id == id; });
}

RankMessages SaveRounds::part_saved(const PartSaved& part, const ProcessTable& processes, bool resuming, Time now) {
  const auto* process = processes.find(part.process);
  if (process == nullptr) return {};
  if (const auto* ended = find_ended(part.attempt)) return {{process->supervisor, *ended}};
  auto* save = find(part.attempt);
  if (save == nullptr) save = &saves_.emplace_back(Save{first_part(part, processes, resuming), now});
  save->round.written(part);
  return decide(processes);
}

SaveRound SaveRounds::first_part(const PartSaved& part, const ProcessTable& processes, bool resuming) const {
  const auto& current = processes.that_saves(part.generation);
  std::vector<ProcessId> members;
  for (const auto& member : current.members) members.push_back(member.process);
  SaveRound round(part.attempt, members, part.best);
  // Ranks that died before the first part was written are not reported again.
  for (const auto& member : members) {
    const auto* process = processes.find(member);
    const bool alive = process != nullptr && !process->ended;
    const bool awaited = resuming && processes.in_slot(member.slot) == nullptr;
    if (!alive && !awaited) round.lost(member, "it is gone");
    if (alive && process->interrupted) round.interrupted(*process->interrupted);
  }
  if (part.generation != current.generation || part.ranks != current.world_size())
    round.fail(-1, "a rank was lost before all had written their parts");
  return round;
}

RankMessages SaveRounds::published(const SaveEnded& ended, const ProcessTable& processes) {
  if (auto* save = find(ended.attempt)) {
    save->round.published(ended);
    return decide(processes);
  }
  if (find_ended(ended.attempt) == nullptr) remember(ended);  // from before this coordinator's time
  return {};
}

RankMessages SaveRounds::interrupted(const RankInterrupted& report, const ProcessTable& processes) {
  for (auto& save : saves_) save.round.interrupted(report);
  return decide(processes);
}

RankMessages SaveRounds::lost(const ProcessId& process, const std::string& why, const ProcessTable& processes) {
  for (auto& save : saves_) save.round.lost(process, why);
  return decide(processes);
}

RankMessages SaveRounds::came_back(const ProcessId& process, const ProcessTable& processes) {
  for (auto& save : saves_) save.round.came_back(process);
  return decide(processes);
}

RankMessages SaveRounds::decide(const ProcessTable& processes) {
  RankMessages messages;
  for (auto save = saves_.begin(); save != saves_.end();) {
    const auto decision = save->round.decide();
    if (decision.action == SaveRound::Action::publish) {
      const auto* publisher = processes.find(decision.publisher);
      if (publisher == nullptr || publisher->ended) {
        save->round.lost(decision.publisher, "it is gone");
        continue;  // who is next?
      }
      messages.emplace_back(publisher->supervisor, save->round.order());
    }
    if (decision.action != SaveRound::Action::end) {
      ++save;
      continue;
    }
    remember(decision.ended);
    for (const auto& [slot, process] : processes.all()) {
      if (!process.ended) messages.emplace_back(process.supervisor, decision.ended);
    }
    save = saves_.erase(save);
  }
  return messages;
}

void SaveRounds::remember(const SaveEnded& ended) {
  constexpr std::size_t kRemembered = 8;  // for ranks that ask late
  ended_.push_back(ended);
  if (ended_.size() > kRemembered) ended_.pop_front();
}

std::vector<std::string> SaveRounds::slow(Time now) {
  constexpr std::chrono::seconds kSlow{60};
  std::vector<std::string> lines;
  for (auto& save : saves_) {
    if (now - save.told < kSlow) continue;
    save.told = now;
    std::string ranks;
    for (const int rank : save.round.missing()) ranks += (ranks.empty() ? " " : ", ") + std::to_string(rank);
    lines.push_back("the checkpoint of step " + std::to_string(save.round.attempt().step) + " still waits for " +
                    (ranks.empty() ? std::string("the disk") : "the part of rank" + ranks));
  }
  return lines;
}

}  // namespace troupe
