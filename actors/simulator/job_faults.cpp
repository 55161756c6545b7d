// The job and what goes wrong in it; what is looked at while it does.
#include <algorithm>

#include "actors/simulator/job.hpp"

namespace troupe::simulator {

using namespace std::chrono_literals;

namespace {

// As --chaos draws it in the coordinator, which starts another in its place; else as its host's agent says it.
void announce_leave(const ProcessId& process, CoordinatorState* coordinator, const caf::actor& agent) {
  if (coordinator != nullptr) return take_notice(*coordinator, {process, "--chaos"}, /*drill=*/true);
  caf::anon_send(agent, LeaveNotice{process, "SIGTERM"});
}

}  // namespace

void Job::freeze(Process& process, milliseconds lasts) {
  if (!process.alive) return;
  world_.freeze(process);
  world_.after(lasts, [this, &process] {
    if (process.alive) world_.log("goes on: " + process.name);
    world_.thaw(process);
  });
}

void Job::inflict(const Fault& fault) {
  if (done_) return;
  auto* rank = living(fault.target);
  auto* agent = agent_of(rank && fault.kind == FaultKind::leave ? rank->process->host : fault.target);
  world_.log("fault: " + fault.to_string());
  note_fault(fault.lasts);
  switch (fault.kind) {
    case FaultKind::kill_rank:
      if (rank) kill_rank(*rank);
      break;
    case FaultKind::kill_agent:  // its children die with it
      if (!agent || agents_.size() == 1) break;
      world_.kill(agent->process());
      kill_ranks_on(fault.target);
      break;
    case FaultKind::kill_coordinator:
      if (launcher_.coordinator().alive && !agents_.empty()) launcher_.kill_coordinator();
      break;
    case FaultKind::stop_rank:
      if (rank) freeze(*rank->process, fault.lasts);
      break;
    case FaultKind::stop_coordinator: freeze(launcher_.coordinator(), fault.lasts); break;
    case FaultKind::stop_agent:
      if (agent) freeze(agent->process(), fault.lasts);
      break;
    case FaultKind::part_hosts: {
      std::set<int> hosts;
      for (int host = 0; host <= fault.target; ++host) hosts.insert(host);
      if (static_cast<int>(hosts.size()) == options_.hosts) break;
      world_.part(hosts);
      world_.after(fault.lasts, [this] {
        world_.log("the network is whole again");
        world_.mend();
      });
      break;
    }
    case FaultKind::cut_link:
    case FaultKind::break_data:
    case FaultKind::break_data_at:
      if (rank) {
        const std::string kind = fault.kind == FaultKind::cut_link ? " control" : " data";
        const auto connections = rank->process->connections;
        for (const auto& [id, connection] : connections) {
          if (connection->name.find(kind) != std::string::npos) world_.cut(*connection);
        }
      }
      break;
    case FaultKind::slow_rank:
      slow_slots_.insert(fault.target);
      world_.after(fault.lasts, [this, slot = fault.target] { slow_slots_.erase(slot); });
      break;
    case FaultKind::slow_network:
      world_.slow_network(50ms);
      world_.after(fault.lasts, [this] { world_.slow_network(0ms); });
      break;
    case FaultKind::leave:
      if (rank && agent) announce_leave(rank->id, fault.lasts > 0ms ? coordinator_state() : nullptr, agent->actor());
      break;
    case FaultKind::full_run_disk: launcher_.fill_run_disk(); break;
    case FaultKind::full_disk: checkpoints_.fill_disk(fault.target); break;
    case FaultKind::replay: world_.replay(20, fault.lasts); break;
    case FaultKind::kill_rank_at:
    case FaultKind::kill_at_journal: break;
  }
}

// Ten times a second: what waits, and for how long; what is kept, and how much of it.
void Job::check() {
  for (const auto& rank : ranks_) {
    if (!rank->process->alive || rank->process->frozen || !rank->model || rank->model->waits().what().empty()) continue;
    const auto& waits = rank->model->waits();
    if (world_.now() > waits.deadline() + 35s)
      history_.broken("I6", rank->process->name + " waits for " + waits.what() + " beyond its deadline");
  }
  if (const auto* state = coordinator_state()) check_bounds(*state);
}

void Job::check_bounds(const CoordinatorState& state) {
  const auto all = static_cast<std::size_t>(options_.ranks) + static_cast<std::size_t>(options_.spares);
  const auto bound = [&](const char* what, std::size_t n, std::size_t most) {
    if (n > most)
      history_.broken(
          "I7", "the coordinator keeps " + std::to_string(n) + " " + what + ", more than " + std::to_string(most));
  };
  bound("processes", state.processes.all().size(), all);
  bound("slots", state.slots.size(), all);
  bound("agents", state.slots.agents().size(), static_cast<std::size_t>(options_.hosts));
  bound("unproved deaths", state.unproved.size(), all);
  bound("processes that are gone", state.resumption.dead(),
        all * static_cast<std::size_t>(1 + state.options.recovery.max_restarts));
  bound("values", state.values.size(), 2 * all);
  bound("saves under way", state.saves.under_way(), 4);
  bound("ended saves", state.saves.remembered(), 8);
  bound("states of a communicator", state.stalls.most_reports(), all);
}

}  // namespace troupe::simulator
