#include "actors/coordinator/leave_notices.hpp"

#include <algorithm>

namespace troupe {

bool LeaveNotices::add(const LeaveNotice& notice, Time now) {
  auto& known = notices_[notice.process.slot];
  if (known.notice.process == notice.process) return false;
  known = {notice, now, {}};
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
  return has(process) && notices_.at(process.slot).notice.why == kDrill && notices_.erase(process.slot) > 0;
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

RankMessages LeaveNotices::let_go(ProcessTable& processes, const SaveRounds& saves, Time now) {
  constexpr std::chrono::seconds kSave{30};
  RankMessages messages;
  for (const auto& [slot, notice] : notices_) {
    auto* process = processes.find(notice.notice.process);
    if (process == nullptr || process->member || !process->is_active()) continue;
    if (process->joined.generation > processes.current().generation) continue;  // a member, for all that is known here
    if (saves.awaits(notice.save) && now - notice.since < kSave) continue;
    process->ended = ErrorReport{.code = ErrorCode::ok, .cause = "it leaves the job (" + notice.notice.why + ")"};
    messages.emplace_back(process->supervisor, AbortJob{*process->ended});
  }
  return messages;
}

}  // namespace troupe
