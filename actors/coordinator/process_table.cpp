#include "actors/coordinator/process_table.hpp"

#include <algorithm>

namespace troupe {

void ProcessTable::add(JoinedProcess process) {
  const int slot = process.joined.process.slot;
  slot_of_address_[process.supervisor.address()] = slot;
  processes_[slot] = std::move(process);
}

const JoinedProcess* ProcessTable::in_slot(int slot) const {
  const auto found = processes_.find(slot);
  return found != processes_.end() ? &found->second : nullptr;
}

const JoinedProcess* ProcessTable::find(const ProcessId& process) const {
  const auto* found = in_slot(process.slot);
  return found != nullptr && found->joined.process == process ? found : nullptr;
}

std::optional<int> ProcessTable::slot_of(const caf::strong_actor_ptr& supervisor) const {
  const auto found = slot_of_address_.find(caf::actor_cast<caf::actor_addr>(supervisor));
  return supervisor && found != slot_of_address_.end() ? std::optional(found->second) : std::nullopt;
}

std::optional<int> ProcessTable::take_address(const caf::actor_addr& address) {
  const auto known = slot_of_address_.extract(address);
  return known ? std::optional(known.mapped()) : std::nullopt;
}

void ProcessTable::make_current(Membership next, bool parted) {
  parted_ = parted ? std::move(current_) : Membership();
  current_ = std::move(next);
  rank_by_slot_.clear();
  for (int rank = 0; rank < current_.world_size(); ++rank)
    rank_by_slot_[current_.members[static_cast<std::size_t>(rank)].process.slot] = rank;
  for (auto& [slot, process] : processes_) {
    process.interrupted.reset();
    process.loop_done.reset();
    process.may_leave = false;
    const bool begins = !process.member;
    process.member = !process.ended && member_rank(process.joined.process) >= 0;
    if (begins && process.member && current_.resume_step > 0) process.steps_at_first = current_.resume_step;
  }
}

// As Membership::rank_of, without looking at all of them.
int ProcessTable::member_rank(const ProcessId& process) const {
  const auto found = rank_by_slot_.find(process.slot);
  if (found == rank_by_slot_.end()) return -1;
  return current_.members[static_cast<std::size_t>(found->second)].process == process ? found->second : -1;
}

int ProcessTable::rank_of(int slot) const {
  const auto* process = in_slot(slot);
  const int rank = process == nullptr ? -1 : member_rank(process->joined.process);
  return rank >= 0 ? rank : slot;
}

bool ProcessTable::is_member(const JoinJob& join) const {
  return member_rank(join.process) >= 0 && join.generation <= current_.generation;
}

std::string ProcessTable::refusal(const JoinJob& join, bool knows_more) const {
  const int slot = join.process.slot;
  const auto other = std::find_if(processes_.begin(), processes_.end(),
                                  [&](const auto& entry) { return entry.second.is_active() && entry.first != slot; });
  if (other != processes_.end()) {  // the others have been compared with it
    const auto& joined = other->second.joined;
    const auto name = "rank " + std::to_string(rank_of(other->first)) + "'s";
    if (joined.build_id != join.build_id)
      return "the program differs from " + name + " (build " + join.build_id + ", " + joined.build_id + ")";
    if (joined.config_hash != join.config_hash)
      return "the config differs from " + name + ": start every rank with the same flags, file and environment";
  }
  const auto* known = in_slot(slot);
  if (known != nullptr && known->is_active() && known->joined.process != join.process)
    return "rank " + std::to_string(slot) + " has joined already: two processes have the same rank";
  if (!is_member(join) && join.generation > 0 && !knows_more)
    return "fenced: generation " + std::to_string(current_.generation) + " goes on without it";
  return {};
}

std::vector<int> ProcessTable::describe(MembershipQuestion& question) const {
  std::vector<int> finished;
  for (const auto& member : current_.members) {
    const auto* process = find(member.process);
    if (process == nullptr) continue;
    if (!process->ended) question.survivors.push_back({member, process->interrupted});
    if (process->ended && (process->ended->code == ErrorCode::ok || process->ended->code == ErrorCode::interrupted))
      finished.push_back(member_rank(member.process));
  }
  for (const auto& [slot, process] : processes_) {
    const auto& joined = process.joined;
    if (!process.member && process.is_active())
      question.candidates.push_back({joined.process, joined.host, joined.spare});
  }
  return finished;
}

bool ProcessTable::all_ended() const {
  return !current_.members.empty() &&
         std::all_of(current_.members.begin(), current_.members.end(), [this](const Member& member) {
           const auto* process = find(member.process);
           return process != nullptr && process->ended;
         });
}

void ProcessTable::loop_done(const LoopDone& done) {
  auto* process = find(done.process);
  if (process == nullptr || !process->member || done.generation != current_.generation) return;
  process->loop_done = done;
  process->may_leave = false;
}

RankMessages ProcessTable::leave_loop() {
  RankMessages messages;
  std::optional<std::int64_t> steps;
  for (const auto& member : current_.members) {
    const auto* process = find(member.process);
    if (process != nullptr && process->ended) continue;
    if (process == nullptr || !process->loop_done) return {};
    const auto done = process->loop_done->steps_done;
    if (steps.value_or(done) != done) return {};
    steps = done;
    if (!process->may_leave) messages.emplace_back(process->supervisor, LeaveLoop{current_.generation, done});
  }
  for (auto& [slot, process] : processes_) process.may_leave = process.loop_done.has_value();
  return messages;
}

}  // namespace troupe
