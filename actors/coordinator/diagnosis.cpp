#include "actors/coordinator/diagnosis.hpp"

#include <algorithm>
#include <map>
#include <vector>

namespace troupe {
namespace {

std::string list_of(const std::vector<const CollectiveState*>& states) {
  std::string text = states.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < states.size(); ++i) text += (i ? ", " : "") + std::to_string(states[i]->rank);
  return text;
}

std::string are_in(const std::vector<const CollectiveState*>& states, const std::string& what) {
  return list_of(states) + (states.size() == 1 ? " is in " : " are in ") + what;
}

std::string wait_in(const std::vector<const CollectiveState*>& states, const std::string& what) {
  return list_of(states) + (states.size() == 1 ? " waits in " : " wait in ") + what;
}

}  // namespace

std::optional<ErrorReport> diagnose(std::span<const CollectiveState> states, std::size_t ranks) {
  std::vector<const CollectiveState*> waiting;
  for (const auto& state : states) {
    if (state.in_flight) waiting.push_back(&state);
  }
  if (waiting.empty()) return std::nullopt;
  const auto* first =
      *std::min_element(waiting.begin(), waiting.end(), [](auto* a, auto* b) { return a->sequence < b->sequence; });

  const auto accuse = [&](const CollectiveState& accused, const char* actor, const std::string& cause) {
    return ErrorReport{
        .code = ErrorCode::mismatch,
        .rank = accused.rank,
        .actor = actor,
        .step = accused.step,
        .operation = "collective " + std::to_string(first->sequence) + " on communicator " + first->communicator,
        .cause = cause,
        .remedy = "every rank must launch the same collectives in the same order"};
  };

  // Those that stand at the same place of the sequence, by what they are in.
  std::map<std::uint64_t, std::vector<const CollectiveState*>> groups;
  for (const auto* state : waiting) {
    if (state->sequence == first->sequence) groups[state->fingerprint].push_back(state);
  }
  if (groups.size() > 1) {
    const auto* majority = &groups.begin()->second;
    for (const auto& [fingerprint, members] : groups) {
      const bool more = members.size() > majority->size();
      const bool tie_with_lowest_rank =
          members.size() == majority->size() && members.front()->rank < majority->front()->rank;
      if (more || tie_with_lowest_rank) majority = &members;
    }
    std::string cause;
    const CollectiveState* accused = nullptr;
    for (const auto& [fingerprint, members] : groups) {
      if (&members == majority) continue;
      if (accused == nullptr) accused = members.front();
      cause += (cause.empty() ? "" : "; ") + are_in(members, members.front()->what);
    }
    cause += ", while " + wait_in(*majority, majority->front()->what);
    return accuse(*accused, "reducer", cause);
  }

  // Two communicators that wait for each other: a rank's Compute stands in a collective of its own, and so sends its
  // Reducer nothing, while the Compute of those who wait in the Reducer's has not come there and does not until their
  // Reducer is done. Who is right shows once all have been heard.
  std::vector<const CollectiveState*> stuck, elsewhere;
  for (const auto* state : waiting) {
    if (state->communicator == kGradientCommunicator && state->sequence == first->sequence && state->awaits_reducer &&
        state->program_what.empty())
      stuck.push_back(state);
  }
  for (const auto& state : states) {
    const bool behind = !state.in_flight && state.sequence < first->sequence && !state.program_what.empty();
    if (behind && !stuck.empty() && std::all_of(stuck.begin(), stuck.end(), [&](auto* other) {
          return other->program_sequence < state.program_sequence;
        }))
      elsewhere.push_back(&state);
  }
  if (!stuck.empty() && !elsewhere.empty() && stuck.size() + elsewhere.size() == ranks) {
    const bool fewer_stuck = stuck.size() < elsewhere.size() ||
                             (stuck.size() == elsewhere.size() && stuck.front()->rank > elsewhere.front()->rank);
    const auto* accused = (fewer_stuck ? stuck : elsewhere).front();
    return accuse(*accused, "compute",
                  are_in(elsewhere, elsewhere.front()->program_what) + ", which " + list_of(stuck) +
                      " did not launch before " + first->what);
  }

  for (const auto& state : states) {
    if (!state.ended || state.sequence >= first->sequence) continue;
    auto report = accuse(state, "compute",
                         "rank " + std::to_string(state.rank) + " has left the training loop after " +
                             std::to_string(state.sequence) + " collectives, while " + wait_in(waiting, first->what));
    report.remedy = "give every rank the same number of steps, or wrap uneven data in Rank::uneven";
    return report;
  }
  return std::nullopt;
}

}  // namespace troupe
