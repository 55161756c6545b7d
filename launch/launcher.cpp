#include "launch/launcher.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "launch/coordinator_child.hpp"
#include "launch/host_launcher.hpp"
#include "launch/node_agent.hpp"
#include "launch/stop_signals.hpp"
#include "tensor_io/error.hpp"

namespace troupe {

using namespace std::chrono_literals;

std::string make_job_id() {
  std::random_device random;
  char text[33];
  std::snprintf(text, sizeof text, "%08x%08x%08x%08x", random(), random(), random(), random());
  return text;
}

namespace {

int launch_here(const LauncherOptions& options) {
  const StopSignals signals;
  const auto program = find_program(options.command[0]);
  const auto job = make_job_id();
  CoordinatorChild coordinator({options.troupe_program, options.run_dir, job, options.nproc, "127.0.0.1", 0, options.recovery});
  RankProcessOptions ranks;
  ranks.job_id = job;
  ranks.program = program;
  ranks.command = options.command;
  ranks.run_dir = options.run_dir;
  ranks.coordinator_port = coordinator.port();
  ranks.world_size = options.nproc;
  for (int r = 0; r < options.nproc; ++r) ranks.slots.push_back(r);
  for (int s = 0; s < options.spares; ++s) ranks.spares.push_back(options.nproc + s);
  ranks.terminal = isatty(1) != 0;
  NodeAgent agent(ranks, options.recovery.enabled);
  bool stopping = false;
  while (!agent.done()) {
    std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}};
    agent.add_fds(fds);
    coordinator.add_fds(fds);
    ::poll(fds.data(), fds.size(), 50);
    if (const int signal = signals.take(); signal != 0) {
      agent.clear_bar();
      if (!stopping) {
        std::fprintf(stderr, "troupe: %s: every rank finishes its step and writes a checkpoint; once more ends them at once\n",
                     strsignal(signal));
      }
      stopping = true;
      agent.asked_to_stop(signal);
    }
    coordinator.step([&] { agent.clear_bar(); });
    agent.step();
  }
  coordinator.step([&] { agent.clear_bar(); });
  return agent.verdict();
}

// The same command was typed on each node: node 0 has the coordinator, all have their ranks.
int launch_static(const LauncherOptions& options) {
  const StopSignals signals;
  const auto program = find_program(options.command[0]);
  const auto job = "static-" + options.master_addr + "-" + std::to_string(options.master_port);
  const int world_size = options.nnodes * options.nproc;
  std::optional<CoordinatorChild> coordinator;
  if (options.node_rank == 0) {
    coordinator.emplace(CoordinatorChild::Options{options.troupe_program, options.run_dir, job, world_size, options.master_addr,
                                                  options.master_port, options.recovery});
  }
  RankProcessOptions ranks;
  ranks.job_id = job;
  ranks.program = program;
  ranks.command = options.command;
  ranks.run_dir = options.run_dir;
  ranks.host = "node" + std::to_string(options.node_rank);
  ranks.coordinator_host = ranks.master_addr = options.master_addr;
  ranks.coordinator_port = options.master_port;
  ranks.address = local_address_towards(options.master_addr, options.master_port);
  ranks.world_size = world_size;
  ranks.node_rank = options.node_rank;
  ranks.nodes = options.nnodes;
  for (int r = 0; r < options.nproc; ++r) ranks.slots.push_back(options.node_rank * options.nproc + r);
  if (options.node_rank == 0) {
    for (int s = 0; s < options.spares; ++s) ranks.spares.push_back(world_size + s);
  }
  ranks.terminal = isatty(1) != 0;
  NodeAgent agent(ranks, options.recovery.enabled);
  while (!agent.done()) {
    std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}};
    agent.add_fds(fds);
    if (coordinator) coordinator->add_fds(fds);
    ::poll(fds.data(), fds.size(), 50);
    if (const int signal = signals.take(); signal != 0) agent.asked_to_stop(signal);
    if (coordinator) coordinator->step([&] { agent.clear_bar(); });
    agent.step();
  }
  // The other nodes' agents learn from the coordinator how the job ended: it stays a moment longer than they need.
  if (coordinator && options.nnodes > 1) std::this_thread::sleep_for(500ms);
  return agent.verdict();
}

}  // namespace

int launch(const LauncherOptions& options) {
  if (!options.hosts.empty()) return launch_on_hosts(options);
  return options.nnodes > 0 ? launch_static(options) : launch_here(options);
}

int run_node(const NodeOptions& options) {
  const StopSignals signals;
  RankProcessOptions ranks;
  ranks.job_id = options.job_id;
  ranks.program = find_program(options.command[0]);
  ranks.command = options.command;
  ranks.run_dir = options.run_dir;
  ranks.host = options.host;
  ranks.address = options.address.empty() ? local_address_towards(options.coordinator_host, options.coordinator_port) : options.address;
  ranks.coordinator_host = options.coordinator_host;
  ranks.master_addr = options.master_addr.empty() ? options.coordinator_host : options.master_addr;
  ranks.coordinator_port = options.coordinator_port;
  ranks.world_size = options.world_size;
  ranks.node_rank = options.node_rank;
  ranks.nodes = options.nodes;
  ranks.slots = options.slots;
  ranks.spares = options.spares;
  NodeAgent agent(ranks, options.recovery);
  while (!agent.done()) {
    std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}, {0, POLLIN, 0}};
    agent.add_fds(fds);
    ::poll(fds.data(), fds.size(), 50);
    if (const int signal = signals.take(); signal != 0) agent.asked_to_stop(signal);
    if (fds[1].revents != 0) {
      char byte = 0;
      const auto n = ::read(0, &byte, 1);
      if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) {  // the launcher is gone
        agent.kill_all();
        return 70;
      }
      if (n == 1 && byte != '\n') agent.asked_to_stop(byte == 'T' ? SIGTERM : SIGINT);
    }
    agent.step();
  }
  return agent.verdict();
}

}  // namespace troupe
