#pragma once
#include <caf/all.hpp>

#include <functional>
#include <map>
#include <optional>

#include "actors/coordinator/recovery_options.hpp"
#include "actors/coordinator/restart_policy.hpp"
#include "actors/messages/coordinator_actor.hpp"

namespace troupe {

/// The job's slots and the agents of their hosts: processes that are being started, deaths and their times, and slots
/// that may be started again. It sends nothing; the time is given.
class SlotTable {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Restart {
    NodeAgentActor agent;  ///< gets `order`; null: nothing is started now
    StartRank order;
    std::string postponed;  ///< a line for the user: the start has to wait
  };

  SlotTable() = default;
  SlotTable(const RecoveryOptions& recovery, int world_size) : recovery_(recovery), world_size_(world_size) {}

  /// Why this agent may not join: another one has its host's name. Empty: it may.
  std::string refusal(const JoinNode& node, const NodeAgentActor& agent) const;
  void set_agent(const std::string& host, NodeAgentActor agent) { agents_[host] = std::move(agent); }
  /// Returns its host; nullopt: no agent has this address. The processes that it was starting will not come.
  std::optional<std::string> remove_agent(const caf::actor_addr& address);
  const std::map<std::string, NodeAgentActor>& agents() const noexcept { return agents_; }  ///< by host
  NodeAgentActor agent_on(const std::string& host) const;                                   ///< null: none
  bool has_agent(int slot) const;

  void set_host(int slot, const std::string& host) { slots_[slot].host = host; }
  /// The agent of this host has started it, or was ordered to.
  void set_ordered(const ProcessId& process, const std::string& host);
  /// Why this process may not take its slot: its host's agent has another one there. Empty: it may.
  std::string refusal(const ProcessId& process) const;
  std::string host_of(int slot) const;  ///< empty: not known
  void set_starting(int slot, bool starting) { slots_[slot].starting = starting; }
  void set_absent(int slot) { slots_[slot].absent = true; }
  void add_death(int slot, Time now) { slots_[slot].deaths.push_back(now); }
  /// How the slot's last life ended: if the same fault comes a second time, it is program_fault from now on.
  void explain_death(int slot, const LifeEnd& end);
  /// A sentence; empty: none is known, and a dead process may be started again.
  const std::string& program_fault() const noexcept { return program_fault_; }
  void add_death(int slot, Time now, const LifeEnd& end) {
    add_death(slot, now);
    explain_death(slot, end);
  }
  /// A link of its host has failed.
  void hold_down(int slot, Time now) { slots_[slot].held_until = now + recovery_.link_hold_down; }
  bool is_starting(int slot) const;
  int starting() const;  ///< how many are being started
  int absent() const;    ///< how many have a host that turned out to be unavailable

  /// Starts another process in this slot, now or later. `draw_incarnation` gives its number.
  Restart restart(int slot, Time now, const std::function<std::uint64_t()>& draw_incarnation);
  /// Slots that died too often, and may be started again by now.
  std::vector<int> cooled(Time now);

  std::size_t size() const noexcept { return slots_.size(); }

 private:
  struct Slot {
    std::vector<Time> deaths;
    std::string host;
    std::uint64_t ordered = 0;  // the process that the agent runs there; 0: not known
    bool starting = false, absent = false;
    bool cooling = false;  // died too often to be started again now
    int restarts = 0;
    LifeEnd last_end;
    Time held_until;  // not started before
  };

  std::vector<std::chrono::milliseconds> recent_deaths(Slot& slot, Time now) const;
  RestartDecision decide(const Slot& slot, Time now);

  RecoveryOptions recovery_;
  int world_size_ = 0;
  std::string program_fault_;
  std::map<int, Slot> slots_;
  std::map<std::string, NodeAgentActor> agents_;  // by host
};

}  // namespace troupe
