#include "actors/coordinator/slot_table.hpp"

#include <algorithm>

namespace troupe {

std::optional<std::string> SlotTable::remove_agent(const caf::actor_addr& address) {
  const auto agent = std::find_if(agents_.begin(), agents_.end(),
                                  [&](const auto& entry) { return entry.second.address() == address; });
  if (agent == agents_.end()) return std::nullopt;
  const auto host = agent->first;
  agents_.erase(agent);
  for (auto& [number, slot] : slots_) {
    if (slot.host == host) slot.starting = false;
  }
  return host;
}

NodeAgentActor SlotTable::agent_on(const std::string& host) const {
  const auto agent = agents_.find(host);
  return agent != agents_.end() ? agent->second : NodeAgentActor();
}

std::string SlotTable::refusal(const JoinNode& node, const NodeAgentActor& agent) const {
  const auto known = agent_on(node.host);
  return known && known != agent ? node.host + " has joined already" : "";
}

void SlotTable::set_ordered(const ProcessId& process, const std::string& host) {
  slots_[process.slot].host = host;
  slots_[process.slot].ordered = process.incarnation;
}

std::string SlotTable::refusal(const ProcessId& process) const {
  const auto found = slots_.find(process.slot);
  const auto ordered = found != slots_.end() ? found->second.ordered : 0;
  if (ordered == 0 || ordered == process.incarnation || !has_agent(process.slot)) return {};
  return "slot " + std::to_string(process.slot) + " belongs to a process that the agent of " + found->second.host +
         " started";
}

std::string SlotTable::host_of(int slot) const {
  const auto found = slots_.find(slot);
  return found != slots_.end() ? found->second.host : std::string();
}

bool SlotTable::has_agent(int slot) const { return agents_.contains(host_of(slot)); }

bool SlotTable::is_starting(int slot) const {
  const auto found = slots_.find(slot);
  return found != slots_.end() && found->second.starting;
}

int SlotTable::starting() const {
  return static_cast<int>(std::count_if(slots_.begin(), slots_.end(), [](const auto& e) { return e.second.starting; }));
}

int SlotTable::absent() const {
  return static_cast<int>(std::count_if(slots_.begin(), slots_.end(), [](const auto& e) { return e.second.absent; }));
}

void SlotTable::explain_death(int number, const LifeEnd& end) {
  auto& slot = slots_[number];
  if (program_fault_.empty() && is_program_fault(slot.last_end, end))
    program_fault_ = "slot " + std::to_string(number) + (slot.host.empty() ? "" : " on " + slot.host) +
                     " died twice in the same way: " + end.cause +
                     (end.steps_made > 0 ? ", step " + std::to_string(end.steps_made) + " of its life" : "");
  slot.last_end = end;
}

SlotTable::Restart SlotTable::restart(int number, Time now, const std::function<std::uint64_t()>& draw_incarnation) {
  auto& slot = slots_[number];
  auto agent = agent_on(slot.host);
  if (!recovery_.enabled || !agent || number >= world_size_ || !program_fault_.empty()) return {};
  if (recovery_.max_restarts == 0) return {};  // never is not later
  const auto decision = decide(slot, now);
  slot.cooling = !decision.start;
  if (!decision.start) {
    return {.postponed = "slot " + std::to_string(number) + " on " + slot.host + " " + decision.reason +
                         ": it is not started again for " + std::to_string((decision.wait.count() + 999) / 1000) +
                         " s"};
  }
  slot.starting = true;
  slot.ordered = draw_incarnation();
  return {.agent = std::move(agent), .order = {{number, slot.ordered}, ++slot.restarts}};
}

std::vector<int> SlotTable::cooled(Time now) {
  std::vector<int> numbers;
  for (auto& [number, slot] : slots_) {
    if (slot.cooling && decide(slot, now).start) numbers.push_back(number);
  }
  return numbers;
}

std::vector<std::chrono::milliseconds> SlotTable::recent_deaths(Slot& slot, Time now) const {
  std::erase_if(slot.deaths, [&](const auto& at) { return now - at > recovery_.restart_window; });
  std::vector<std::chrono::milliseconds> ages;
  for (const auto& at : slot.deaths) ages.push_back(std::chrono::duration_cast<std::chrono::milliseconds>(now - at));
  return ages;
}

RestartDecision SlotTable::decide(const Slot& slot, Time now) {
  if (now < slot.held_until) {
    return {false, std::chrono::duration_cast<std::chrono::milliseconds>(slot.held_until - now),
            "is on a link that failed"};
  }
  std::vector<std::chrono::milliseconds> of_slot, of_host;
  int slots_of_host = 0;
  for (auto& [number, other] : slots_) {
    if (other.host != slot.host) continue;
    ++slots_of_host;
    const auto ages = recent_deaths(other, now);
    of_host.insert(of_host.end(), ages.begin(), ages.end());
    if (&other == &slot) of_slot = ages;
  }
  return may_restart(of_slot, of_host,
                     {.most = recovery_.max_restarts,
                      .most_of_host = recovery_.max_restarts + slots_of_host,
                      .window = recovery_.restart_window});
}

}  // namespace troupe
