#include "actors/coordinator/save_round.hpp"

#include <utility>

namespace troupe {

SaveRound::SaveRound(SaveAttempt attempt, std::vector<ProcessId> members, bool best)
    : attempt_(std::move(attempt)), members_(std::move(members)), best_(best) {
  for (std::size_t rank = 0; rank < members_.size(); ++rank)
    rank_by_slot_[members_[rank].slot] = static_cast<int>(rank);
}

int SaveRound::rank_of(const ProcessId& process) const {
  const auto found = rank_by_slot_.find(process.slot);
  return found != rank_by_slot_.end() && members_[static_cast<std::size_t>(found->second)] == process ? found->second
                                                                                                      : -1;
}

void SaveRound::written(const PartSaved& part) {
  const int rank = rank_of(part.process);
  if (rank < 0 || outcome_) return;
  if (part.report.code == ErrorCode::ok) {
    written_.insert(rank);
  } else {
    outcome_ = failed_save(attempt_, part.report);
  }
}

void SaveRound::published(const SaveEnded& ended) {
  if (!outcome_) outcome_ = ended;
}

void SaveRound::lost(const ProcessId& process, const std::string& why) {
  const int rank = rank_of(process);
  if (rank < 0 || outcome_) return;
  lost_.insert(rank);
  if (publisher_ == rank) publisher_ = -1;
  if (!written_.contains(rank))
    fail(rank, "rank " + std::to_string(rank) + " was lost before its part was on disk (" + why + ")");
}

void SaveRound::fail(int rank, const std::string& cause) {
  if (outcome_) return;
  outcome_ = failed_save(attempt_, {.code = ErrorCode::peer_lost,
                                    .rank = rank,
                                    .actor = "coordinator",
                                    .step = attempt_.step,
                                    .operation = "saving a checkpoint",
                                    .cause = cause});
}

void SaveRound::interrupted(const RankInterrupted& report) {
  if (report.save != attempt_.id) lost(report.process, "it was interrupted before it had begun to write");
}

void SaveRound::came_back(const ProcessId& process) {
  const int rank = rank_of(process);
  lost_.erase(rank);
  if (publisher_ >= 0 && publisher_ == rank) publisher_ = -1;
}

std::vector<int> SaveRound::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    if (!written_.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

SaveRound::Decision SaveRound::decide() {
  if (outcome_) return {Action::end, {}, *outcome_};
  if (written_.size() < members_.size() || publisher_ >= 0) return {};
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    if (lost_.contains(rank)) continue;
    publisher_ = rank;
    return {Action::publish, members_[static_cast<std::size_t>(rank)], {}};
  }
  fail(-1, "all its ranks were lost");
  return {Action::end, {}, *outcome_};
}

}  // namespace troupe
