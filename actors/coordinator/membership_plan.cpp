#include "actors/coordinator/membership_plan.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace troupe {
namespace {

using Action = MembershipAnswer::Action;

std::string ranks(int n) { return std::to_string(n) + (n == 1 ? " rank" : " ranks"); }

// Takes the best candidate for a vacancy: the slot's own replacement, then spares and late hosts, of the same host
// first.
std::optional<Candidate> take(std::vector<Candidate>& candidates, const Member& vacant) {
  const auto better = [&](const Candidate& a, const Candidate& b) {
    const auto value = [&](const Candidate& c) {
      return (c.process.slot == vacant.process.slot ? 4 : 0) + (c.host == vacant.host ? 2 : 0) + (c.spare ? 1 : 0);
    };
    return value(a) != value(b) ? value(a) > value(b) : a.process.slot < b.process.slot;
  };
  const auto best = std::min_element(candidates.begin(), candidates.end(), better);
  if (best == candidates.end()) return std::nullopt;
  const auto taken = *best;
  candidates.erase(best);
  return taken;
}

MembershipAnswer form(const MembershipQuestion& q) {
  std::vector<Candidate> ready;
  for (const auto& candidate : q.candidates) {
    if (!candidate.spare) ready.push_back(candidate);
  }
  std::sort(ready.begin(), ready.end(), [](const auto& a, const auto& b) { return a.process.slot < b.process.slot; });
  const int n = static_cast<int>(ready.size());
  const bool late = q.replacements_coming == 0 && q.waited >= q.replace_timeout;
  const bool all_that_come = n >= q.world_size - q.absent;
  if (q.world_size - q.absent < q.min_start)
    return {Action::park,
            ranks(q.world_size - q.absent) + " can be started and the job needs " + std::to_string(q.min_start),
            {},
            {}};
  if (!(all_that_come || late) || n < q.min_start) {
    return {Action::wait, ranks(n) + " of " + std::to_string(q.world_size) + " joined", {}, {}};
  }
  MembershipAnswer answer{Action::go, "the job begins with " + ranks(n), {}, {}};
  for (const auto& candidate : ready) answer.next.members.push_back({candidate.process, candidate.host, false});
  if (n > q.world_size) answer.next.members.resize(static_cast<std::size_t>(q.world_size));
  return answer;
}

// Survivors that do not reach each other can't train together, whoever of the two is to blame: it goes whose links fail
// to more of the others, of equals one that lacks state, then the higher rank.
std::optional<MembershipAnswer> link_fault(const MembershipQuestion& q) {
  if (std::all_of(q.survivors.begin(), q.survivors.end(),
                  [](const auto& survivor) { return survivor.report->unreachable.empty(); }))
    return std::nullopt;
  std::map<int, std::set<int>> cut;  // rank -> those that it has no link with
  std::map<int, const Survivor*> by_rank;
  for (const auto& survivor : q.survivors) by_rank[q.current.rank_of(survivor.member.process)] = &survivor;
  for (const auto& [rank, survivor] : by_rank) {
    for (const int other : survivor->report->unreachable) {
      if (other == rank || !by_rank.contains(other)) continue;
      cut[rank].insert(other);
      cut[other].insert(rank);
    }
  }
  if (cut.empty()) return std::nullopt;
  const auto weight = [&](const auto& entry) {
    return std::make_tuple(entry.second.size(), !by_rank.at(entry.first)->report->whole, entry.first);
  };
  const auto worst =
      std::max_element(cut.begin(), cut.end(), [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  std::string others;
  for (const int other : worst->second) others += (others.empty() ? "" : ", ") + std::to_string(other);
  MembershipAnswer answer{Action::expel,
                          "it and rank" + std::string(worst->second.size() == 1 ? " " : "s ") + others +
                              " can't reach each other over the data network",
                          {},
                          by_rank.at(worst->first)->member.process};
  answer.link_fault = true;
  return answer;
}

// Whether all stand between two steps, with what only those hold that leave.
bool have_parted(const MembershipQuestion& q) {
  return q.survivors.size() == q.current.members.size() &&
         std::all_of(q.survivors.begin(), q.survivors.end(), [](const auto& s) { return s.report->parted; });
}

// It is to leave, and the others have what it held: not yet where the notice came after its vote.
bool is_gone(const Survivor& survivor) { return survivor.report->leaves && !survivor.leaves.empty(); }

// "rank 1 on b leaves (SIGTERM): "
std::string leavers(const MembershipQuestion& q) {
  std::string text;
  for (const auto& survivor : q.survivors) {
    if (is_gone(survivor))
      text += (text.empty() ? "" : ", ") + ("rank " + std::to_string(q.current.rank_of(survivor.member.process))) +
              " on " + survivor.member.host + " leaves (" + survivor.leaves + ")";
  }
  return text.empty() ? text : text + ": ";
}

}  // namespace

MembershipAnswer plan_membership(const MembershipQuestion& q) {
  MembershipAnswer answer;
  if (q.current.members.empty()) {
    answer = form(q);
    answer.next.generation = q.current.generation + 1;
    answer.next.reason = answer.reason;
    return answer;
  }
  const int reachable = static_cast<int>(q.survivors.size());
  if (reachable == 0) {
    return {q.unreachable > 0 ? Action::park : Action::start_over,
            "no rank of generation " + std::to_string(q.current.generation) + " is left",
            {},
            {}};
  }
  if (q.unreachable > 0 && 2 * reachable <= reachable + q.unreachable) {
    return {Action::park,
            "only " + std::to_string(reachable) + " of " + ranks(reachable + q.unreachable) +
                " can be reached, and the others may be alive: no quorum",
            {},
            {}};
  }
  for (const auto& survivor : q.survivors) {
    if (!survivor.report) {
      return {
          Action::wait, "slot " + std::to_string(survivor.member.process.slot) + " has not left its step yet", {}, {}};
    }
  }

  if (auto fault = link_fault(q)) return std::move(*fault);

  const bool fresh =
      std::none_of(q.survivors.begin(), q.survivors.end(), [](const Survivor& s) { return s.report->whole; });
  const bool started = std::any_of(q.survivors.begin(), q.survivors.end(),
                                   [](const Survivor& s) { return s.report->distributed || s.report->steps_done > 0; });
  if (fresh && started) return {Action::start_over, "no remaining rank has the whole state", {}, {}};

  // Where they go on. A rank whose heal was interrupted has no say: it is healed again, wherever it stands.
  const auto counts = [&](const Survivor& survivor) { return fresh || survivor.report->whole; };
  std::int64_t done = 0;
  for (const auto& survivor : q.survivors) {
    if (counts(survivor)) done = std::max(done, survivor.report->steps_done);
  }
  answer.next.resume_step = done;
  answer.next.tasks_done = -1;
  bool behind = false;
  for (const auto& survivor : q.survivors) {
    if (!counts(survivor)) continue;
    const auto& report = *survivor.report;
    if (report.steps_done == done) {
      if (report.votes_step == done - 1 && answer.next.votes.empty()) answer.next.votes = report.votes;
      if (answer.next.tasks_done < 0 || report.tasks_done < answer.next.tasks_done)
        answer.next.tasks_done = report.tasks_done;
      continue;
    }
    behind = true;
    // One that goes back to a snapshot anyway may have done so already, while another had not when they were
    // interrupted.
    if (!report.goes_back && (report.steps_done != done - 1 || report.voted_step != done - 1)) {
      return {Action::expel,
              "slot " + std::to_string(survivor.member.process.slot) + " is at step " +
                  std::to_string(report.steps_done) + " and can't follow the others to step " + std::to_string(done),
              {},
              report.process};
    }
  }
  if (behind) answer.next.tasks_done = 0;

  // Who takes part.
  auto candidates = q.candidates;
  std::vector<std::optional<Member>> places(q.current.members.size());
  std::map<std::pair<std::int32_t, std::uint64_t>, const Survivor*> by_process;
  const bool parted = have_parted(q);
  // Who comes in their place needs one that has the state: of members that all leave the first stays a little longer.
  const bool all_leave = std::none_of(q.survivors.begin(), q.survivors.end(),
                                      [&](const Survivor& survivor) { return !is_gone(survivor) && counts(survivor); });
  const bool donor_stays = parted && all_leave && !candidates.empty();
  bool donor = donor_stays;
  for (const auto& survivor : q.survivors)
    by_process[{survivor.member.process.slot, survivor.member.process.incarnation}] = &survivor;
  for (std::size_t r = 0; r < places.size(); ++r) {
    const auto& process = q.current.members[r].process;
    const auto found = by_process.find({process.slot, process.incarnation});
    if (found == by_process.end()) continue;
    const bool is_donor = donor && counts(*found->second);
    if (is_donor) donor = false;
    if (!parted || !is_gone(*found->second) || is_donor)
      places[r] = Member{process, found->second->member.host, !found->second->report->whole && !fresh};
  }
  int vacancies = 0, filled = 0;
  for (std::size_t r = 0; r < places.size(); ++r) {
    if (places[r]) continue;
    ++vacancies;
    if (auto candidate = take(candidates, q.current.members[r])) {
      places[r] = Member{candidate->process, candidate->host, !fresh};
      ++filled;
    }
  }
  while (static_cast<int>(places.size()) < q.world_size) {  // after a shrink the job grows again
    ++vacancies;
    auto candidate = take(candidates, Member{});
    if (!candidate) {
      if (q.replacements_coming == 0) --vacancies;  // nobody else comes
      break;
    }
    places.emplace_back(Member{candidate->process, candidate->host, !fresh});
    ++filled;
  }
  if (filled < vacancies && q.replacements_coming > 0 && q.waited < q.replace_timeout) {
    return {Action::wait, ranks(vacancies - filled) + " to be replaced", {}, {}};
  }
  for (const auto& place : places) {
    if (place) answer.next.members.push_back(*place);
  }
  const int n = donor_stays && filled == 0 ? 0 : answer.next.world_size();
  const auto who = parted ? leavers(q) : std::string();
  if (n < q.min_ranks) {
    return {Action::park,
            who + ranks(n) + " left and none to replace the others; the job needs " + std::to_string(q.min_ranks),
            {},
            {}};
  }
  answer.action = Action::go;
  const int before = q.current.world_size();
  answer.reason = who +
                  (n < before   ? "shrinks from " + std::to_string(before) + " to " + ranks(n)
                   : n > before ? "grows from " + std::to_string(before) + " to " + ranks(n)
                   : filled > 0 ? ranks(filled) + " replaced, " + ranks(n) + " go on"
                                : "the same " + ranks(n) + " go on") +
                  " at step " + std::to_string(done);
  answer.next.generation = q.current.generation + 1;
  answer.next.reason = answer.reason;
  return answer;
}

}  // namespace troupe
