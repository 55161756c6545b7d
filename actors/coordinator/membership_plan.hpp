#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/membership.hpp"

namespace troupe {

/// A process that joined and is no member: a replacement, a spare, one of a host that came late.
struct Candidate {
  ProcessId process;
  std::string host;
  bool spare = false;
};

struct Survivor {
  Member member;
  std::optional<RankInterrupted> report;  // empty: has not stopped yet
  std::string leaves;                     // why it is to leave the job; empty: it stays
};

struct MembershipQuestion {
  int world_size = 1;  ///< wanted
  int min_ranks = 1;
  Membership current;               // no members: the job has not begun
  std::vector<Survivor> survivors;  // of the current members: reachable, not ended
  int unreachable = 0;              ///< current members that can't be reached and whose death is not proved
  std::vector<Candidate> candidates;
  int absent = 0;               ///< slots whose host turned out to be unavailable at the start
  int min_start = 1;            ///< ranks that the job may begin with, if some are absent or late
  int replacements_coming = 0;  ///< processes that are being started
  std::chrono::milliseconds waited{0};
  std::chrono::milliseconds replace_timeout{5000};
};

struct MembershipAnswer {
  enum class Action { wait, go, park, expel, start_over };
  Action action = Action::wait;
  std::string reason;       // one sentence, for the log; start_over: no process has the state any more
  Membership next;          // go
  ProcessId expelled;       // expel: its state fits no other's, or one of its links has failed; end it and ask again
  bool link_fault = false;  // a link has failed: a new process in its place would fare no better, for a while
};

/// Decides on the next membership. Pure: the same question gives the same answer.
///
/// Survivors keep their ranks if the world size stays. A vacant rank goes to a newcomer: its slot's own, else one of
/// the same host, else a spare. Without enough newcomers within `replace_timeout` the world shrinks and ranks close up.
/// Members whose death is not proved count for the quorum: more than half of the members not known dead must be
/// reachable. So two halves of a cut network never both go on. If any survivor committed a step, all that voted on it
/// commit it; else it is run again. If the coordinator reaches two ranks that do not reach each other, it expels the
/// one with more such links. Of equals it expels the one that lacks state, else the higher one. Members that are to
/// leave do so if all have stopped for it between two steps; else they go on with the others for now.
MembershipAnswer plan_membership(const MembershipQuestion& question);

}  // namespace troupe
