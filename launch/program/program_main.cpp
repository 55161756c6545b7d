#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>

#include "actors/coordinator/coordinator_rendezvous.hpp"
#include "actors/strategy/known_parts.hpp"
#include "launch/config/config_help.hpp"
#include "launch/config/profile_setting.hpp"
#include "launch/debug/inspection.hpp"
#include "launch/launcher/inject_process_fault.hpp"
#include "launch/launcher/start_over.hpp"
#include "launch/loop/rank.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/network/actor_system.hpp"
#include "launch/network/agent_link.hpp"
#include "launch/network/job_keys.hpp"
#include "launch/observe/operators.hpp"
#include "launch/process/build_id.hpp"
#include "launch/process/environment.hpp"
#include "launch/process/fatal_signals.hpp"
#include "launch/process/local_address.hpp"
#include "launch/process/process_limits.hpp"
#include "launch/process/stop_signals.hpp"
#include "launch/process/terminal.hpp"
#include "launch/program/process_settings.hpp"
#include "launch/program/rank_life.hpp"
#include "launch/program/simulate.hpp"
#include "launch/run/run_choice.hpp"
#include "launch/run/run_identity.hpp"
#include "launch/run/run_lock.hpp"
#include "strategies/mesh/pipeline_schedule.hpp"
#include "strategies/shipped_strategies.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tensor_io/communicator/choice/device_selection.hpp"
#include "tensor_io/memory/tensor_memory.hpp"

namespace troupe {
namespace {

StopRequest stop_request;
bool is_launched = false;  // the launcher says the same for all ranks

extern "C" void on_stop_signal(int number) {
  switch (stop_request.add(number, StopRequest::Clock::now())) {
    case StopRequest::Meaning::finish: {
      process_stop_signal = number;
      constexpr std::string_view kHow =
          "note: it ends after this step; a second signal, at least a second later, ends it at once\n";
      const int error = errno;
      if (!is_launched) [[maybe_unused]]
        const auto written = ::write(2, kHow.data(), kHow.size());
      errno = error;
      break;
    }
    case StopRequest::Meaning::same: break;
    case StopRequest::Meaning::at_once: _exit(128 + number);
  }
}

void handle_signals(bool launched) {
  is_launched = launched;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM}) {
    if (!is_ignored(number)) sigaction(number, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

void take_folders(Config& config, const RunOfJob& run) {
  for (const auto& [name, folder] :
       {std::pair{"run_dir", &config.run_dir}, {"checkpoint_dir", &config.checkpoint_dir}}) {
    if (*folder == kNewRunFolder) config.sources.erase(name);
  }
  if (!config.run_dir.empty()) config.run_dir = run.folder;
  config.checkpoint_dir = checkpoint_folder(config.checkpoint_dir, config.run_dir);
  if (!run.checkpoint.empty()) config.resume = run.checkpoint;
}

// Finds out which run this is, where our launcher has not. Who is to lock its folder.
std::shared_ptr<RunLock> choose_run(Config& config, RankEnvironment& place, const std::string& program) {
  std::shared_ptr<RunLock> lock;
  RunSettings settings{.run_dir = config.run_dir,
                       .checkpoint_dir = config.checkpoint_dir,
                       .resume = config.resume,
                       .asked_to_resume = config.sources.contains("resume")};
  if (!place.coordinator_host.empty()) {
    if (place.run.checkpoint.empty() && !config.resume.empty()) {  // launched by a command that we could not read ahead
      settings.run_dir = place.run.folder;
      place.run.checkpoint = choose_run(settings, {place.run.run_id, 0}, program).resume;
      config.resume.clear();
    }
  } else {
    // torchrun starts the program again for the same run.
    const auto parent = place.run.job_id.empty() ? std::nullopt : parent_identity();
    const auto fresh = parent ? *parent : new_run_identity();
    settings.validate_only = config.validate_only;
    const auto choice = choose_run(settings, fresh, program);
    const auto job = (place.run.job_id.empty() ? "" : place.run.job_id + "-") + fresh.id;
    place.run = {job, choice.folder, choice.id, choice.resume};
    config.resume.clear();
    if (place.rank == 0 && !choice.note.empty()) std::fprintf(stderr, "resume: %s\n", choice.note.c_str());
    lock = std::make_shared<RunLock>(choice.folder, choice.is_new_folder);
  }
  take_folders(config, place.run);
  if (place.start_over && !config.validate_only && !list_checkpoints(config.checkpoint_dir).empty())
    config.resume = "latest";
  return lock;
}

int report(const ErrorReport& failure) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::fprintf(stderr, "error: %s\n", failure.to_string().c_str());
  std::fflush(stderr);
  return exit_code(failure.code);
}

// What the ranks of one process failed of: each cause once, and that a rank was ended for another's failure only if
// nobody says of what.
class Failures {
 public:
  ~Failures() {
    if (told_.empty() && echo_) report(*echo_);
  }
  int tell(const RankEnd& end) {
    const auto& failure = end.report;
    if (failure.code == ErrorCode::ok || failure.code == ErrorCode::interrupted) return end.code;
    std::lock_guard lock(mutex_);
    if (failure.code == ErrorCode::aborted) {
      if (!echo_) echo_ = failure;
      return exit_code(failure.code);
    }
    return told_.insert(failure.operation + '\n' + failure.cause).second ? report(failure) : exit_code(failure.code);
  }

 private:
  std::mutex mutex_;
  std::set<std::string> told_;
  std::optional<ErrorReport> echo_;
};

LaunchOutcome simulate_once(const Config& config, const SimulationOptions& simulation,
                            const std::function<void(Rank&)>& body) {
  ActorSystemConfig system_config(false);
  caf::actor_system system(system_config);
  std::optional<JobOver> over;
  Failures failures;
  const int code = simulate(
      system, simulation,
      [&](const RankSystemOptions& model) {
        auto options = model;
        options.ledger_path = ledger_path(config, {}, options.process.slot);
        options.device = choose_device(config, device_facts(), {options.process.slot, simulation.world_size, true});
        const auto end = run_rank(system, config, options, body);
        // Of one that --chaos has killed the coordinator tells.
        return end.report.code == ErrorCode::fenced ? end.code : failures.tell(end);
      },
      &over);
  return {code, lost_state(over, process_stop_signal)};
}

bool traces_operators(const Config& config) {
  const auto profile = profile_setting(config.profile);
  return profile.traces() && profile.operators;
}

// What TROUPE_FAULT does to processes, done to simulated ranks.
void place_faults(SimulationOptions& simulation) {
  const auto planned = planned_faults();
  for (const auto& fault : planned) {
    if (fault.slot == "coordinator" || std::stoll(fault.slot) >= simulation.world_size)
      throw Error(ErrorCode::usage, "TROUPE_FAULT", "slot=" + fault.slot + " is not a simulated rank",
                  "ranks are 0 to " + std::to_string(simulation.world_size - 1));
    if (fault.signal != SIGKILL)
      throw Error(ErrorCode::usage, "TROUPE_FAULT", "signal=" + std::to_string(fault.signal) + " needs a process",
                  "a simulated rank is killed, by signal=9; troupe launch starts processes");
  }
  if (planned.empty()) return;
  simulation.recovery.enabled = true;
  simulation.faults = [planned](int slot, int life) {
    std::vector<PlacedFault> mine;
    for (const auto& fault : planned) {
      if (fault.slot == std::to_string(slot) && fault.life == life)
        mine.push_back({fault.place, fault.step, ChaosKind::kill, {}});
    }
    return mine;
  };
}

// The rank's device; of simulated ranks, the first one's.
c10::Device device_of(const Config& config, const RankEnvironment& place) {
  if (config.ranks > 1) return choose_device(config, device_facts(), {0, static_cast<int>(config.ranks), true});
  if (!place.launched) return choose_device(config, device_facts(), {});
  return choose_device(config, device_facts(), {place.local_rank, std::max(1, place.local_world_size), false});
}

int run_simulated(Config config, c10::Device device, const std::string& program,
                  const std::function<void(Rank&)>& body) {
  std::fprintf(
      stderr,
      "note: %lld ranks as threads of this process: a simulated cluster, for tests; troupe launch starts processes\n",
      static_cast<long long>(config.ranks));
  RankEnvironment place;
  const auto lock = choose_run(config, place, program);
  SimulationOptions simulation;
  simulation.world_size = static_cast<int>(config.ranks);
  simulation.rank = options_of(config, place, device);
  simulation.rank.run_lock = lock;
  if (traces_operators(config)) OperatorTrace::initialise(!simulation.rank.device.is_cpu());
  place_faults(simulation);
  if (!config.chaos.empty()) {
    simulation.chaos = parse_chaos(config.chaos);
    simulation.recovery.enabled = true;
  }
  if (simulation.recovery.enabled)
    simulation.log = [](const std::string& line) { std::fprintf(stderr, "troupe: %s\n", line.c_str()); };
  return run_until_kept(simulation.recovery, [&](int starts_over) {
    if (starts_over > 0 && !config.validate_only && !list_checkpoints(config.checkpoint_dir).empty())
      config.resume = "latest";
    simulation.rank.begins = starts_over == 0;
    if (simulation.chaos) simulation.chaos->life = 1'000 * static_cast<std::uint64_t>(starts_over);
    return simulate_once(config, simulation, body);
  });
}

int run_alone(Config config, const RankEnvironment& given, c10::Device device, const std::string& program,
              const std::function<void(Rank&)>& body) {
  ActorSystemConfig system_config(false);
  caf::actor_system system(system_config);
  RankEnvironment place;
  place.run.job_id = given.run.job_id;
  place.restarted = given.restarted;
  const auto lock = choose_run(config, place, program);
  auto options = options_of(config, place, device);
  options.run_lock = lock;
  options.page_token = random_token();
  return Failures().tell(run_rank(system, config, options, body));
}

int run_launched(Config config, RankEnvironment place, c10::Device device, const std::string& program,
                 const std::function<void(Rank&)>& body) {
  const auto rendezvous = place.run.job_id;
  const auto given = config;
  const auto lock = choose_run(config, place, program);
  tell_fatal_signals();
  require_threads(8);
  std::optional<JobKeys> keys;
  if (!place.keys.empty()) keys = KeyFolder::read(place.keys);
  if (keys && place.coordinator_host.empty() && !place.restarted)
    KeyFolder::require_dates(place.keys, *keys, std::time(nullptr));
  const auto page_token = keys ? hmac_text(keys->token, "live page") : random_token();
  ActorSystemConfig system_config(true, std::move(keys),
                                  [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); });
  caf::actor_system system(system_config);
  // NCCL refuses two ranks of one host on one device; told that they are on two hosts, it takes the network between
  // them.
  if (config.share_device && !device.is_cpu())
    setenv("NCCL_HOSTID", (place.run.job_id + "-" + std::to_string(place.slot)).c_str(), 0);
  auto options = options_of(config, place, device);
  options.run_lock = lock;
  options.page_token = page_token;
  options.hurt = hurt_this_process;
  options.recovery = place.recovery;
  CoordinatorActor hosted;
  if (!place.coordinator_host.empty()) {
    options.coordinator =
        connect_coordinator(system, place.coordinator_host, place.coordinator_port, std::chrono::seconds(30));
    options.reconnect = [&system, host = place.coordinator_host, port = place.coordinator_port](
                            std::chrono::milliseconds patience, const std::function<bool()>& stopped) {
      return find_coordinator(system, host, port, patience, stopped);
    };
  } else {
    // Another launcher, torchrun say: rank 0 hosts the coordinator on the port after the master's, which the launcher
    // itself may hold.
    const auto port = static_cast<std::uint16_t>(place.master_port + 1);
    if (place.rank == 0) {
      CoordinatorOptions coordinator_options;
      coordinator_options.job_id = place.run.job_id;
      coordinator_options.run = place.run.to_text();
      coordinator_options.world_size = place.world_size;
      hosted = system.spawn(coordinator, coordinator_options);
      const auto address = ipv4_address_of(place.master_addr);
      if (place.local_world_size < place.world_size) note_loopback_name(place.master_addr, address);
      publish_coordinator(system, hosted, port, address, place.insecure);
      options.coordinator = hosted;
    } else {
      options.coordinator = connect_coordinator(system, place.master_addr, port, std::chrono::seconds(60));
      const auto run = run_of(system, options.coordinator);
      if (!rendezvous.empty() && !run.job_id.starts_with(rendezvous + "-"))
        throw Error(ErrorCode::mismatch, "join", "job id " + rendezvous + " is not this job's (" + run.job_id + ")");
      options.job_id = run.job_id;
      options.run_id = run.run_id;
      config.run_dir = given.run_dir, config.checkpoint_dir = given.checkpoint_dir, config.resume.clear();
      take_folders(config, run);
      options.ledger_path = ledger_path(config, place, place.slot);
    }
  }
  const auto end = run_rank(system, config, options, [&](Rank& rank) {
    body(rank);
    if (place.coordinator_host.empty())
      rank.retry([&] { rank.communicator().barrier("end"); });  // rank 0 takes the coordinator with it
  });
  // The launcher has the reason from the coordinator, and says it once for all ranks.
  const bool said =
      !place.coordinator_host.empty() && end.report.code == ErrorCode::parked && end.report.operation == "recovery";
  const int code = said ? end.code : Failures().tell(end);
  options.coordinator = CoordinatorActor();
  if (hosted) caf::anon_send_exit(hosted, caf::exit_reason::user_shutdown);
  std::fflush(stdout);
  return code;
}

}  // namespace

int main(int argc, char** argv, const std::function<void(Rank&)>& program,
         const std::function<void(Config&)>& declare) {
  try {
    Config config;
    if (declare) declare(config);
    std::string help_topic;
    const auto action = parse_config(config, argc, argv, &help_topic);
    register_shipped_strategies();
    const HelpOptions help{argv[0],
                           help_columns(STDOUT_FILENO),
                           {{"strategy", known_strategies()},
                            {"comm_hook", known_comm_hooks()},
                            {"pipeline_schedule", known_schedules()}}};
    if (action != ConfigAction::run) {
      const char* rank = std::getenv("RANK");
      if (rank != nullptr && std::string_view(rank) != "0") return 0;  // rank 0 says it for all
      const auto text = action != ConfigAction::help ? config_to_toml(config)
                        : help_topic.empty()         ? config_help(config, help)
                                                     : config_help_on(config, help_topic, help);
      return std::fputs(text.c_str(), stdout), 0;
    }
    check_registered_names(config, help);
    const auto body = inspected_if_asked(program, config);
    keep_freed_memory();
    if (traces_operators(config)) OperatorTrace::silence();
    profile_of_process().reset();
    const auto place = read_environment();
    (void)planned_faults();  // what can't be read is refused before the first step
    if (place.launched && config.ranks > 1) {
      throw Error(ErrorCode::usage, "ranks", "a launched process is one rank",
                  "leave --ranks out, or start the program without a launcher");
    }
    if (!config.chaos.empty() && config.ranks < 2) {
      throw Error(ErrorCode::usage, "chaos", "there are no simulated ranks to hurt",
                  "add --ranks N, or give --chaos to troupe launch, before the program's name");
    }
    const bool shared = place.world_size > 1 || config.ranks > 1;
    const auto device = device_of(config, place);
    apply_process_settings(config, shared, bind_to_device(config, device));
    handle_signals(place.launched);
    if (config.ranks > 1) return run_simulated(config, device, argv[0], body);
    if (!place.launched || (place.world_size == 1 && place.coordinator_host.empty()))
      return run_alone(config, place, device, argv[0], body);
    return run_launched(config, place, device, argv[0], body);
  } catch (...) {
    return report(report_of(std::current_exception()));
  }
}

}  // namespace troupe
