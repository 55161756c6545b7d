#include "launch/program/simulate.hpp"

#include <signal.h>

#include <condition_variable>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <thread>

namespace troupe {
namespace {

constexpr std::chrono::seconds kReplacement{
    10};  // for the coordinator's word on who comes next, after the last rank ended

/// Does for the threads of a simulated cluster what an agent does for the processes of its host: starts and kills them,
/// tells the coordinator who has ended.
class SimulatedHost {
 public:
  SimulatedHost(caf::actor_system& system, const SimulationOptions& options, const RankLife& run_rank)
      : system_(system), options_(options), run_rank_(run_rank) {
    CoordinatorOptions coordinator_options;
    coordinator_options.job_id = options.rank.job_id;
    coordinator_options.world_size = options.world_size;
    coordinator_options.recovery = options.recovery;
    coordinator_options.chaos = options.chaos;
    coordinator_options.log = options.log;
    coordinator_options.record = options.on_membership;
    coordinator_options.draw_incarnation = options.draw_incarnation;
    coordinator_ = system.spawn(coordinator, coordinator_options);
    std::map<std::string, std::vector<ProcessId>> first;
    for (int slot = 0; slot < options.world_size + options.spares; ++slot)
      first[host_of(slot)].push_back({slot, options.draw_incarnation()});
    for (const auto& [host, processes] : first) join(host, processes);
    for (const auto& [host, processes] : first) {
      for (const auto& process : processes) start(process, 0);
    }
  }
  ~SimulatedHost() {
    for (auto& life : lives_) life.thread.join();
    caf::scoped_actor self(system_);
    for (const auto& [name, host] : hosts_) {
      caf::anon_send_exit(host.agent, caf::exit_reason::user_shutdown);
      self->wait_for(host.agent);
    }
    caf::anon_send_exit(coordinator_, caf::exit_reason::user_shutdown);
  }
  SimulatedHost(const SimulatedHost&) = delete;
  SimulatedHost& operator=(const SimulatedHost&) = delete;

  /// Until no rank is left and none will come.
  void wait() {
    std::unique_lock lock(mutex_);
    while (alive_ > 0 || (recovers() && !over_)) {
      if (changed_.wait_for(lock, kReplacement) == std::cv_status::timeout && alive_ == 0) return;
    }
  }
  /// That of the rank that failed of itself is worth more than those of the ranks that were aborted because of it.
  int exit_status() const {
    std::lock_guard lock(mutex_);
    int status = 0;
    for (const auto& life : lives_) {
      if (life.process->killed()) continue;
      if (status == 0 || (status == exit_code(ErrorCode::aborted) && life.status != 0)) status = life.status;
    }
    return status;
  }
  std::optional<JobOver> over() const {
    std::lock_guard lock(mutex_);
    return over_;
  }

 private:
  struct Host {
    NodeAgentActor agent;
    CoordinatorActor coordinator;  // as the agent knows it
  };
  struct Life {
    std::shared_ptr<SimulatedProcess> process;
    std::thread thread;
    int status = 0;
  };

  bool recovers() const noexcept { return options_.recovery.enabled; }

  std::string host_of(int slot) const { return options_.host_of ? options_.host_of(slot) : options_.rank.host; }

  CoordinatorActor address_of_coordinator(int slot, const std::string& host) const {
    return options_.address_of ? options_.address_of(coordinator_, slot, host) : coordinator_;
  }

  void join(const std::string& host, const std::vector<ProcessId>& first) {
    auto& mine = hosts_[host];
    mine.coordinator = address_of_coordinator(-1, host);
    auto known = std::make_shared<std::promise<void>>();
    const JoinNode node{options_.rank.job_id, host, first};
    const auto agent = [this, known, coordinator = mine.coordinator](NodeAgentActor::pointer self,
                                                                     const JoinNode& join) {
      self->request(coordinator, caf::infinite, join).then([known](const std::string&) { known->set_value(); });
      return NodeAgentActor::behavior_type{
          [this](const StartRank& command) { start(command.process, command.restarts); },
          [this](const KillRank& command) { kill(command.process); }, [this](const JobOver& command) { end(command); }};
    };
    mine.agent =
        system_.spawn(agent, node);  // without an argument CAF 0.17.6 dereferences a null pointer (to an empty tuple)
    known->get_future().wait();
  }

  template <class Message>
  void tell_coordinator(const std::string& host, const Message& message) const {
    const auto& [agent, coordinator] = hosts_.at(host);
    caf::send_as(agent, coordinator, message);
  }

  void start(const ProcessId& process, int life) {
    std::lock_guard lock(mutex_);
    if (over_) return;
    auto& mine = lives_.emplace_back();
    mine.process = std::make_shared<SimulatedProcess>(
        process, options_.faults ? options_.faults(process.slot, life) : std::vector<PlacedFault>{},
        options_.slowed ? options_.slowed(process.slot) : std::chrono::microseconds(0));
    mine.process->on_leave([this, process] {
      tell_coordinator(host_of(process.slot), LeaveNotice{process, "a notice"});
    });
    mine.thread = std::thread([this, &mine] { run(mine); });
    ++alive_;
  }

  void run(Life& mine) {
    auto options = options_.rank;
    options.process = mine.process->id();
    options.world_size = options_.world_size;
    options.spare = options.process.slot >= options_.world_size;
    options.host = host_of(options.process.slot);
    options.coordinator = address_of_coordinator(options.process.slot, options.host);
    if (recovers()) {
      set_fault_watch(mine.process);
      options.hurt = [process = mine.process](ChaosKind kind, std::chrono::milliseconds lasts) {
        process->hurt(kind, lasts);
      };
      options.on_supervisor = [process = mine.process](const RankSupervisorActor& supervisor) {
        process->set_supervisor(supervisor);
      };
      options.reconnect = [coordinator = options.coordinator](auto, const auto&) {
        return caf::actor_cast<caf::strong_actor_ptr>(coordinator);
      };
    }
    const int status = run_rank_(options);
    set_fault_watch({});
    tell_coordinator(options.host, RankExited{options.process, mine.process->killed() ? SIGKILL : status << 8});
    std::lock_guard lock(mutex_);
    mine.status = status;
    --alive_;
    changed_.notify_all();
  }

  void kill(const ProcessId& process) {
    std::lock_guard lock(mutex_);
    for (const auto& life : lives_) {
      if (life.process->id() == process) life.process->kill();
    }
  }

  void end(const JobOver& over) {
    std::lock_guard lock(mutex_);
    over_ = over;
    changed_.notify_all();
  }

  caf::actor_system& system_;
  const SimulationOptions& options_;
  const RankLife& run_rank_;
  CoordinatorActor coordinator_;
  std::map<std::string, Host> hosts_;  // they stay
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Life> lives_;  // guarded by mutex_, as all below
  int alive_ = 0;
  std::optional<JobOver> over_;
};

}  // namespace

int simulate(caf::actor_system& system, const SimulationOptions& options, const RankLife& run_rank,
             std::optional<JobOver>* over) {
  SimulatedHost host(system, options, run_rank);
  host.wait();
  const auto end = host.over();
  if (over != nullptr) *over = end;
  if (!end) return host.exit_status();
  // As an agent: one that a job has gone on without is none of its business.
  const int signal = process_stop_signal;
  return end->exit_code == 0 && signal != 0 ? 128 + signal : end->exit_code;
}

}  // namespace troupe
