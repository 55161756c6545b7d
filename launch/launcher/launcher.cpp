#include "launch/launcher/launcher.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>
#include <thread>

#include "launch/config/profile_setting.hpp"
#include "launch/config/settings_ahead.hpp"
#include "launch/launcher/coordinator_child.hpp"
#include "launch/launcher/failure_report.hpp"
#include "launch/launcher/host_launcher.hpp"
#include "launch/launcher/job_outline.hpp"
#include "launch/launcher/node_agent.hpp"
#include "launch/launcher/shared_keys.hpp"
#include "launch/network/actor_system.hpp"
#include "launch/network/job_keys.hpp"
#include "launch/process/fatal_signals.hpp"
#include "launch/process/local_address.hpp"
#include "launch/process/process_limits.hpp"
#include "launch/process/stop_signals.hpp"
#include "launch/process/terminal.hpp"
#include "launch/run/run_choice.hpp"
#include "launch/run/run_lock.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {

using namespace std::chrono_literals;

namespace {

bool validates_only(const std::vector<std::string>& command) {
  const auto ahead = settings_ahead(command, {"validate_only"});
  const auto found = ahead.find("validate_only");
  bool only = false;
  return found != ahead.end() && parse_switch(found->second, only) && only;
}

// Learns from node 0's coordinator which run this node's ranks belong to. Returns the signal that came meanwhile.
int join_run(RankProcessOptions& ranks, const std::optional<JobKeys>& keys, StopSignals& signals) {
  int signal = 0;
  ActorSystemConfig config(true, keys);
  caf::actor_system system(config);
  try {
    const auto coordinator =
        connect_coordinator(system, ranks.coordinator_host, static_cast<std::uint16_t>(ranks.coordinator_port), 60s,
                            [&] { return (signal = signals.take().signal) != 0; });
    const auto folder = ranks.run.folder;
    const auto outline = ranks.run.outline;
    ranks.run = run_of(system, coordinator);
    const auto where = ranks.master_addr + ":" + std::to_string(ranks.coordinator_port);
    if (const auto other = difference(ranks.run.outline, outline); !other.empty())
      throw Error(ErrorCode::usage, "--nnodes", "the job at " + where + " is a different one: " + other,
                  "start every node with the same settings; for another job use another --master-port");
    if (const auto why = ask_to_join(system, coordinator, ranks.run.job_id, ranks.host); !why.empty())
      throw Error(ErrorCode::usage, "--node-rank", "the job at " + where + " refuses: " + why,
                  "give each node another number; for another job use another --master-port");
    if (folder != kNewRunFolder) ranks.run.folder = folder;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::interrupted) throw;
    return signal;
  }
  return 0;
}

// One node of a job: the only one, or one of several on which the same command was typed. Node 0 has the coordinator.
LaunchOutcome launch_as_node(const LauncherOptions& options, const RunOfJob& run, RunLock& lock, int starts_over) {
  tell_fatal_signals();
  require_threads(4);
  const bool alone = options.nnodes == 0, one_node = options.nnodes <= 1;
  const bool makes_shared = !one_node && options.keys.empty() && !options.insecure && !options.step.empty();
  if (!one_node && options.keys.empty() && !options.insecure && !makes_shared) {
    throw Error(ErrorCode::usage, "--nnodes",
                "without keys any process that reaches " + options.master_addr + ":" +
                    std::to_string(options.master_port) + " can control the job",
                "make keys with troupe keys DIR and give --keys DIR on every node, or use --insecure-network");
  }
  StopSignals signals(options.stop_at);
  RankProcessOptions ranks;
  ranks.run = run;
  if (!one_node) ranks.run.outline = outline_of(options);
  ranks.program = find_program(options.command[0]);
  ranks.command = options.command;
  ranks.world_size = std::max(1, options.nnodes) * options.nproc;
  ranks.coordinator_port = alone ? 0 : options.master_port;
  ranks.starts_over = starts_over;
  if (!alone) {
    ranks.host = "node" + std::to_string(options.node_rank);
    ranks.coordinator_host = ipv4_address_of(options.master_addr);
    ranks.master_addr = options.master_addr;
    ranks.address = local_address_towards(ranks.coordinator_host, options.master_port);
    ranks.node_rank = options.node_rank;
    ranks.nodes = options.nnodes;
  }
  std::optional<JobKeys> keys;
  std::optional<SharedKeys> shared;
  if (makes_shared) {
    const auto folder = (options.run_dir == kNewRunFolder ? kRunsFolder : options.run_dir) + "/.keys-" + options.step;
    if (options.node_rank == 0) {
      keys = shared.emplace(folder, options.nnodes).own();
    } else {
      int signal = 0;
      try {
        keys =
            SharedKeys::await(folder, options.node_rank, 120s, [&] { return (signal = signals.take().signal) != 0; });
      } catch (const Error& error) {
        if (error.code() != ErrorCode::interrupted) throw;
        return {128 + signal, {}};
      }
    }
    ranks.own_keys = std::make_shared<KeyFolder>(*keys);
    ranks.keys = ranks.own_keys->path();
  } else if (!options.keys.empty()) {
    keys = KeyFolder::read(options.keys);
    KeyFolder::require_dates(options.keys, *keys, std::time(nullptr));
    ranks.keys = options.keys;
  } else if (!options.insecure) {  // other users of this machine reach its loopback interface, too
    keys = KeyMaker().keys_for("localhost");
    ranks.own_keys = std::make_shared<KeyFolder>(*keys);
    ranks.keys = ranks.own_keys->path();
  }
  std::optional<CoordinatorChild> coordinator;
  if (ranks.node_rank > 0) {
    if (const int signal = join_run(ranks, keys, signals); signal != 0) return {128 + signal, {}};
    if (options.on_run_folder) options.on_run_folder(ranks.run.folder);
  } else {
    lock.take();
    if (options.on_run_folder) options.on_run_folder(ranks.run.folder);
    if (!alone) note_loopback_name(options.master_addr, ranks.coordinator_host);
    const CoordinatorProcessOptions process{.run = ranks.run,
                                            .world_size = ranks.world_size,
                                            .recovery = options.recovery,
                                            .chaos = options.chaos,
                                            .address = ranks.coordinator_host,
                                            .port = ranks.coordinator_port,
                                            .insecure = options.insecure};
    coordinator.emplace(CoordinatorChild::Options{options.troupe_program, process, keys, starts_over});
    ranks.coordinator_port = coordinator->port();
    for (int s = 0; s < options.spares; ++s) ranks.spares.push_back(ranks.world_size + s);
  }
  for (int r = 0; r < options.nproc; ++r) ranks.slots.push_back(ranks.node_rank * options.nproc + r);
  ranks.terminal = shows_bars(1);
  ranks.recovery = options.recovery.enabled;
  NodeAgent agent(ranks);
  const auto clear_bar = [&] { agent.clear_bar(); };
  while (!agent.done()) {
    std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}};
    agent.add_fds(fds);
    if (coordinator) coordinator->add_fds(fds);
    ::poll(fds.data(), fds.size(), 50);
    if (const auto request = signals.take(); request.signal != 0) {
      clear_bar();
      // A signal to node 0 asks the whole job to stop, and so does the end of its time.
      const bool leaves = ranks.node_rank > 0 && ranks.recovery && request.signal == SIGTERM && !request.by_time;
      if (!request.at_once) leaves ? say_leaving(request.signal) : say_stopping(request);
      leaves ? agent.asked_to_leave(request, signal_name(request.signal)) : agent.asked_to_stop(request);
    }
    if (coordinator) coordinator->step(clear_bar);
    agent.step();
    if (options.on_output) options.on_output();
  }
  // The other nodes' agents learn from the coordinator how the job ended: it stays a moment longer than they need.
  if (coordinator && ranks.nodes > 1) std::this_thread::sleep_for(500ms);
  if (coordinator) coordinator->finish(clear_bar);
  const auto lost = alone ? agent.state_lost() : std::nullopt;
  return {agent.verdict(), lost};
}

// Our own flag wins over what the program is given.
RunSettings run_settings(const LauncherOptions& options) {
  RunSettings settings;
  const auto ahead = settings_ahead(options.command, {"run_dir", "checkpoint_dir", "resume"});
  const auto take = [&](const char* name, std::string& value) {
    if (const auto found = ahead.find(name); found != ahead.end()) value = found->second;
  };
  take("run_dir", settings.run_dir);
  take("checkpoint_dir", settings.checkpoint_dir);
  take("resume", settings.resume);
  settings.validate_only = validates_only(options.command);
  if (options.run_dir != kNewRunFolder) settings.run_dir = options.run_dir;
  if (settings.run_dir.empty()) settings.run_dir = kNewRunFolder;  // the program wants none; the ranks' logs need one
  return settings;
}

// A job that would write to another's checkpoint folder is refused before its ranks start. Rank 0 takes the folder.
void require_free(const std::string& checkpoint_dir, const std::vector<std::string>& command) {
  const auto ahead = settings_ahead(command, {"save_every"});
  const auto saves = ahead.find("save_every");
  if ((saves != ahead.end() && saves->second.starts_with('-')) || !is_folder(checkpoint_dir, "checkpoint_dir")) return;
  try {
    lock_directory(checkpoint_dir);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unavailable) throw;
  }
}

// The state is on disk, and the same command goes on from it. A setting that named another run or step must not win,
// nor a newer run; all nodes must type the same.
int ended(int code, const LauncherOptions& options, const std::string& folder) {
  if (code != exit_code(ErrorCode::parked)) return code;
  const auto resume = run_settings(options).resume;
  const bool named = !resume.empty() && resume != "auto" && resume != "latest" && options.nnodes <= 1;
  std::fprintf(stderr, "troupe: next: %s\n", resume_command(own_command(), named ? folder : "auto").c_str());
  return code;
}

}  // namespace

int launch(const LauncherOptions& given) {
  (void)planned_faults();  // what can't be read is refused before a run is chosen
  auto options = given;
  const bool joins = options.nnodes > 0 && options.node_rank > 0;  // node 0 chooses
  const auto fresh = new_run_identity();
  RunOfJob run{fresh.id, options.run_dir, fresh.id, {}};
  bool is_new = false, is_apart = false;
  if (!joins) {
    const auto choice = choose_run(run_settings(options), fresh, options.command[0]);
    run = {fresh.id, choice.folder, choice.id, choice.resume};
    is_new = choice.is_new_folder;
    is_apart = choice.is_apart;
    if (!choice.note.empty()) std::fprintf(stderr, "resume: %s\n", choice.note.c_str());
    // In the run's folder they are kept by its lock.
    if (!is_apart && !choice.checkpoint_dir.starts_with(choice.folder + "/"))
      require_free(choice.checkpoint_dir, options.command);
  }
  RunLock lock(run.folder, is_new, run.checkpoint.empty());
  if (options.time_limit > 0ms) options.stop_at = std::chrono::steady_clock::now() + time_to_stop(options.time_limit);
  const int code = run_until_kept(options.recovery, [&](int starts_over) {
    return options.hosts.empty() ? launch_as_node(options, run, lock, starts_over)
                                 : launch_on_hosts(options, run, lock, starts_over);
  });
  lock.note_exit(code);
  if (code == exit_code(ErrorCode::usage)) lock.remove_unused();
  return ended(code, options, run.folder);
}

int run_node(RankProcessOptions ranks) {
  tell_fatal_signals();
  require_threads(4);
  StopSignals signals;
  if (ranks.keys_on_stdin) {
    ranks.own_keys = std::make_shared<KeyFolder>(JobKeys::read_framed(0));
    ranks.keys = ranks.own_keys->path();
  }
  ranks.under_launcher = true;
  ranks.program = find_program(ranks.command[0]);
  ranks.address = local_address_towards(ranks.coordinator_host, ranks.coordinator_port);
  NodeAgent agent(ranks);
  while (!agent.done()) {
    std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}, {0, POLLIN, 0}};
    agent.add_fds(fds);
    ::poll(fds.data(), fds.size(), 50);
    if (const auto request = signals.take(); request.signal == SIGTERM) {
      agent.asked_to_leave(request, signal_name(SIGTERM));
    } else {
      agent.asked_to_stop(request);
    }
    if (fds[1].revents != 0) {
      char byte = 0;
      const auto n = ::read(0, &byte, 1);
      if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) {  // the launcher is gone
        agent.kill_all();
        return 70;
      }
      if (n == 1 && byte == 'L') agent.asked_to_leave({SIGTERM}, "troupe drain");
      if (n == 1 && (byte == 'T' || byte == 'I')) agent.asked_to_stop({byte == 'T' ? SIGTERM : SIGINT});
    }
    agent.step();
  }
  return agent.verdict();
}

}  // namespace troupe
