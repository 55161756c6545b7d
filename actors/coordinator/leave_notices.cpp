#include "actors/coordinator/leave_notices.hpp"

#include <algorithm>

namespace troupe {

bool LeaveNotices::add(const LeaveNotice& notice, bool drill) {
  auto& known = notices_[notice.process.slot];
  if (known.notice.process == notice.process) return false;
  known = {notice, drill, {}, {}};
  return true;
}

void LeaveNotices::joined(const ProcessId& process) {
  if (!has(process)) notices_.erase(process.slot);
}

bool LeaveNotices::has(const ProcessId& process) const {
  const auto found = notices_.find(process.slot);
  return found != notices_.end() && found->second.notice.process == process;
}

bool LeaveNotices::ended(const ProcessId& process) {
  return has(process) && notices_.at(process.slot).drill && notices_.erase(process.slot) > 0;
}

void LeaveNotices::mark(MembershipQuestion& question) {
  for (auto& survivor : question.survivors) {
    const auto& process = survivor.member.process;
    if (!has(process)) continue;
    auto& notice = notices_.at(process.slot);
    survivor.leaves = notice.notice.why;
    if (survivor.report) notice.save = survivor.report->save;
  }
  std::erase_if(question.candidates, [this](const Candidate& candidate) { return has(candidate.process); });
}

bool LeaveNotices::concern(const Membership& current) const {
  return std::any_of(current.members.begin(), current.members.end(),
                     [this](const Member& member) { return has(member.process); });
}

RankMessages LeaveNotices::ask(const ProcessTable& processes) const {
  RankMessages messages;
  for (const auto& [slot, notice] : notices_) {
    const auto* process = processes.find(notice.notice.process);
    if (process != nullptr && process->member && process->is_active())
      messages.emplace_back(process->supervisor, LeaveJob{processes.current().generation});
  }
  return messages;
}

std::vector<ProcessId> LeaveNotices::due(const ProcessTable& processes, const SaveRounds& saves, Time now,
                                         std::chrono::milliseconds patience) {
  std::vector<ProcessId> due;
  for (auto& [slot, notice] : notices_) {
    const auto* process = processes.find(notice.notice.process);
    if (process == nullptr || process->member || !process->is_active()) continue;
    if (process->joined.generation > processes.current().generation) continue;  // a member, for all that is known here
    if (!notice.since) notice.since = now;
    if (!saves.awaits(notice.save) || now - *notice.since > patience) due.push_back(notice.notice.process);
  }
  return due;
}

ErrorReport LeaveNotices::reason(const ProcessId& process) const {
  return {.code = ErrorCode::ok, .cause = "it leaves the job (" + notices_.at(process.slot).notice.why + ")"};
}

}  // namespace troupe
