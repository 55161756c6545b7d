#include "launch/testing/cluster.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>

#include "actors/strategy/own_actor.hpp"
#include "launch/config/config.hpp"
#include "launch/loop/step_profile.hpp"
#include "launch/network/actor_system.hpp"
#include "launch/process/rank_lines.hpp"
#include "launch/program/rank_life.hpp"
#include "launch/program/simulate.hpp"
#include "launch/testing/cut_communicator.hpp"
#include "launch/testing/network.hpp"
#include "launch/testing/thread_schedule.hpp"
#include "strategies/shipped_strategies.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/communicator/communicator_registry.hpp"
#include "tensor_io/communicator/conformance/conformance_values.hpp"
#include "tensor_io/memory/tensor_memory.hpp"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;

constexpr const char* kBackend = "cluster";
constexpr std::chrono::microseconds kStep{10'000};  // of the cluster's clock: what computes takes none of that

std::string name_of_host(int host) { return "host" + std::to_string(host); }
int number_of_host(const std::string& name) { return std::stoi(name.substr(4)); }

// What waits in it waits under the schedule, on one host or several.
std::unique_ptr<Communicator> make_cluster_communicator(const CommunicatorOptions& options,
                                                        const std::shared_ptr<Network>& network) {
  auto shared = options;
  shared.backend = "shm";
  shared.host = kBackend;
  shared.ranks_on_host = std::numeric_limits<int>::max();  // one runs at a time: to spin gains nothing
  auto made = make_communicator(std::move(shared));
  if (!network) return made;
  std::vector<int> hosts;
  for (const auto& name : made->all_gather_bytes(options.host, "hosts")) hosts.push_back(number_of_host(name));
  if (std::set<int>(hosts.begin(), hosts.end()).size() == 1) return made;
  return std::make_unique<CutCommunicator>(options, std::move(made), std::move(hosts), network);
}

// `network`: of a cluster of several hosts.
void register_backend(const std::shared_ptr<Network>& network) {
  register_communicator(
      kBackend, "shared memory: hosts of a test's cluster",
      [network](const CommunicatorOptions& options) { return make_cluster_communicator(options, network); });
}

// What a rank's thread and process have of it, as long as the job lasts.
class NetworkOfJob {
 public:
  NetworkOfJob(std::shared_ptr<Network> network, bool several_hosts) : network_(std::move(network)) {
    register_backend(several_hosts ? network_ : nullptr);
  }
  ~NetworkOfJob() {
    register_backend(nullptr);
    (void)network_->end();
  }
  NetworkOfJob(const NetworkOfJob&) = delete;
  NetworkOfJob& operator=(const NetworkOfJob&) = delete;
  Network* operator->() const noexcept { return network_.get(); }

 private:
  const std::shared_ptr<Network> network_;
};

std::optional<ChaosKind> chaos_of(ClusterFault::Kind kind) {
  switch (kind) {
    case ClusterFault::Kind::kill: return ChaosKind::kill;
    case ClusterFault::Kind::stop: return ChaosKind::stop;
    case ClusterFault::Kind::leave: return ChaosKind::leave;
    default: return std::nullopt;
  }
}

void check_backend(const Config& config) {
  if (config.backend != kBackend)
    throw Error(ErrorCode::usage, "backend", config.backend + " does not wait in the order of the schedule",
                "leave it out, or make the cluster with .parallel = true");
}

Config config_of(const Job& job, const Settings& settings, const ClusterOptions& cluster) {
  std::map<std::string, std::string> given{
      {"run_dir", ""}, {"save_every", "-1"}, {"tensorboard", "false"}, {"progress_bar", "false"}};
  if (settings.epochs > 0) given["epochs"] = std::to_string(settings.epochs);
  if (settings.max_steps > 0) given["max_steps"] = std::to_string(settings.max_steps);
  if (settings.batch_size > 0) given["batch_size"] = std::to_string(settings.batch_size);
  if (!settings.strategy.empty()) given["strategy"] = settings.strategy;
  if (!cluster.parallel) given["backend"] = kBackend;
  for (const auto& [name, text] : settings.more) {
    for (const char* own : {"ranks", "chaos", "run_dir", "resume", "device", "threads"}) {
      if (name == own)
        throw Error(ErrorCode::usage, name, "a cluster in a test has no such setting",
                    "ClusterOptions says how many ranks there are; they have one thread of the CPU each, the faults "
                    "are the test's, and no run is kept");
    }
    for (const char* field : {"max_steps", "epochs", "batch_size", "strategy"}) {
      if (name == field) throw Error(ErrorCode::usage, name, "it is a field of Settings", "set it there");
    }
    if (name == "save_every" && !settings.more.contains("checkpoint_dir"))
      throw Error(ErrorCode::usage, name, "there is no checkpoint_dir", "name a folder of the test's");
    given[name] = text;
  }
  std::vector<std::string> words{"cluster"};
  for (const auto& [name, text] : given) words.push_back("--" + name + "=" + text);
  std::vector<const char*> arguments;
  arguments.reserve(words.size());
  for (const auto& word : words) arguments.push_back(word.c_str());
  Config config;
  if (job.declare) job.declare(config);
  parse_config(config, static_cast<int>(arguments.size()), arguments.data());
  for (const auto& [name, source] : config.sources) {
    if (source.starts_with("TROUPE_"))
      throw Error(ErrorCode::usage, source, "it would change the job of a test", "unset it");
  }
  config.ranks = cluster.hosts * cluster.ranks_per_host;
  if (!cluster.parallel) check_backend(config);
  return config;
}

// The types of the messages between which a fault could choose.
std::string types_of(const Message& wanted, const TrainedRun& run) {
  const auto rank = "rank " + std::to_string((wanted.from ? *wanted.from : *wanted.to).number);
  std::set<std::string> types;
  for (const auto& message : run.messages()) {
    if ((wanted.from ? message.from : message.to) == rank) types.insert(message.type);
  }
  std::string text;
  for (const auto& type : types) text += (text.empty() ? "" : ", ") + type;
  return "; those " + std::string(wanted.from ? "of " : "to ") + rank + " were " + text;
}

}  // namespace

const at::Tensor& Weights::at(const std::string& name) const {
  for (const auto& [known, tensor] : tensors_) {
    if (known == name) return tensor;
  }
  std::string names;
  for (const auto& [known, tensor] : tensors_) names += (names.empty() ? "" : ", ") + known;
  throw Error(ErrorCode::usage, name, "the model has no such tensor", "it has " + names);
}

std::string Weights::difference(const Weights& other) const {
  if (tensors_.size() != other.tensors_.size())
    return std::to_string(tensors_.size()) + " tensors, and " + std::to_string(other.tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& [name, mine] = tensors_[i];
    const auto& [their_name, theirs] = other.tensors_[i];
    if (name != their_name) return name + ", and " + their_name;
    if (mine.scalar_type() != theirs.scalar_type()) return name + " is of another type";
    if (mine.sizes() != theirs.sizes()) return name + " has another shape";
    if (conformance::same_bits(mine.contiguous(), theirs.contiguous())) continue;
    if (!mine.is_floating_point()) return name + " differs";
    std::ostringstream text;
    text << name << " differs by up to " << (mine.to(at::kDouble) - theirs.to(at::kDouble)).abs().max().item<double>();
    return text.str();
  }
  return {};
}

const Weights& TrainedRun::weights() const {
  if (code_ != 0)
    throw Error(ErrorCode::usage, "weights", "the job ended with " + std::to_string(code_) + ": " + error_);
  return weights_;
}

const std::vector<std::string>& TrainedRun::log(Rank rank) const {
  static const std::vector<std::string> nothing;
  const auto found = logs_.find(rank.number);
  return found == logs_.end() ? nothing : found->second;
}

/// One run of a job on a cluster.
class ClusterRun {
 public:
  ClusterRun(const ClusterOptions& options, const std::vector<ClusterFault>& faults, const Job& job,
             const Settings& settings)
      : options_(options), faults_(faults), job_(job), config_(begin(job, settings)) {}

  TrainedRun train() {
    keep_freed_memory();
    profile_of_process().reset();
    const OneThread one_thread;
    std::optional<ThreadSchedule> schedule;
    if (!options_.parallel) schedule.emplace(ThreadScheduleOptions{.seed = options_.seed});
    const auto start = std::chrono::steady_clock::now();
    simulate_job();
    run_.time_ = std::chrono::steady_clock::now() - start;
    if (schedule) run_.fingerprint_ = schedule->fingerprint();
    for (std::size_t i = 0; i < faults_.size(); ++i) {
      if (!came_.contains(i) && faults_[i].kind != ClusterFault::Kind::slow) run_.missed_.push_back(faults_[i]);
    }
    return std::move(run_);
  }

 private:
  // LibTorch's, in each rank.
  struct OneThread {
    OneThread() { at::set_num_threads(1); }
    ~OneThread() { at::set_num_threads(before); }
    const int before = at::get_num_threads();
  };

  Config begin(const Job& job, const Settings& settings) const {
    check_parts(job);
    register_shipped_strategies();
    register_backend(nullptr);
    return config_of(job, settings, options_);
  }

  int ranks() const noexcept { return options_.hosts * options_.ranks_per_host; }

  void simulate_job() {
    ActorSystemConfig system_config(false);
    caf::actor_system system(system_config);
    const NetworkOfJob network(std::make_shared<Network>(system, faults_, [this](std::size_t i) { came(i); }),
                               options_.hosts > 1);
    SimulationOptions simulation;
    simulation.world_size = ranks();
    simulation.spares = options_.spares;
    simulation.host_of = [this](int slot) { return name_of_host(host_of(slot)); };
    simulation.address_of = [&network](const CoordinatorActor& coordinator, int slot, const std::string& host) {
      const auto number = number_of_host(host);
      const NetworkEnd here =
          slot < 0 ? NetworkEnd{"host " + std::to_string(number), number, {}} : end_of(slot, number);
      return caf::actor_cast<CoordinatorActor>(
          network->connect(here, {"coordinator", 0, {}}, caf::actor_cast<caf::strong_actor_ptr>(coordinator)));
    };
    RankEnvironment place;
    place.run.job_id = "cluster";
    simulation.rank = options_of(config_, place, at::kCPU);
    simulation.recovery.enabled = true;
    simulation.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      run_.coordinator_log_.push_back(line);
    };
    simulation.faults = [this, &network](int slot, int life) { return faults_of(slot, life, network); };
    simulation.slowed = [this](int slot) { return slowed(slot); };
    simulation.on_membership = [this](const Membership& membership) { add(membership); };
    simulation.draw_incarnation = [this] { return incarnation_++; };
    std::optional<JobOver> over;
    run_.code_ = simulate(
        system, simulation, [&](const RankSystemOptions& model) { return live(system, model, network); }, &over);
    if (over && over->exit_code != 0) run_.error_ = over->report.to_string();
    run_.messages_ = network->end();
  }

  int host_of(int slot) const { return slot < ranks() ? slot / options_.ranks_per_host : slot % options_.hosts; }

  static NetworkEnd end_of(int slot, int host) { return {"rank " + std::to_string(slot), host, slot}; }

  int live(caf::actor_system& system, const RankSystemOptions& model, const NetworkOfJob& network) {
    const int slot = model.process.slot;
    address_before_own_actor = [&network, here = end_of(slot, host_of(slot))](const caf::strong_actor_ptr& actor,
                                                                              const std::string& name) {
      return network->connect(here, {here.name + "'s " + name, here.host, {}}, actor);
    };
    set_line_taker(std::make_shared<LineTaker>([this, slot](const std::string& line) {
      const std::lock_guard lock(mutex_);
      run_.logs_[slot].push_back(line);
    }));
    const TrainingWatch watch{[this, slot](const troupe::Rank&, const StepReport& report) { add(slot, report); },
                              [this](troupe::Rank& rank, Optimizer& optimizer) { keep_weights(rank, optimizer); }};
    const auto end = run_rank(system, config_, model, [&](troupe::Rank& rank) { troupe::train(job_, rank, watch); });
    set_line_taker({});
    address_before_own_actor = nullptr;
    return end.code;
  }

  void came(std::size_t fault) {
    const std::lock_guard lock(mutex_);
    came_.insert(fault);
  }

  // What comes by a place of this rank.
  std::vector<PlacedFault> faults_of(int slot, int life, const NetworkOfJob& network) {
    std::vector<PlacedFault> mine;
    for (std::size_t i = 0; i < faults_.size(); ++i) {
      const auto& fault = faults_[i];
      const auto* const at = place_of(fault, slot);
      if (at == nullptr || at->life != life) continue;
      mine.push_back({at->place, at->step, chaos_of(fault.kind), fault.lasts, [this, i, &network] {
                        if (!begins(i)) return;
                        if (!chaos_of(faults_[i].kind)) network->begin(i);
                      }});
    }
    return mine;
  }

  // Where in a rank's way a fault begins; nullptr: it does not.
  const At* place_of(const ClusterFault& fault, int slot) const {
    if (fault.hits_message()) {
      const auto& message = fault.message;
      return message.after && (message.from ? *message.from : *message.to).number == slot ? &*message.after : nullptr;
    }
    if (fault.kind == ClusterFault::Kind::slow) return nullptr;
    if (fault.kind != ClusterFault::Kind::cut) return fault.rank == slot ? &fault.at : nullptr;
    return fault.host.number == host_of(slot) || fault.other.number == host_of(slot) ? &fault.at : nullptr;
  }

  // False: another rank has come by a cut's place before. What hits a message has come only with that.
  bool begins(std::size_t fault) {
    const std::lock_guard lock(mutex_);
    return faults_[fault].hits_message() || came_.insert(fault).second ||
           faults_[fault].kind != ClusterFault::Kind::cut;
  }

  // A step's time under the schedule, where computing takes none; in real time what it takes more than others.
  std::chrono::microseconds slowed(int slot) const {
    double factor = 1;
    for (const auto& fault : faults_) {
      if (fault.kind == ClusterFault::Kind::slow && fault.rank == slot) factor *= fault.factor;
    }
    return std::chrono::microseconds(
        static_cast<std::int64_t>((options_.parallel ? factor - 1 : factor) * kStep.count()));
  }

  // Each rank that lives says what the step came to: one that is killed behind its vote says nothing.
  void add(int slot, const StepReport& report) {
    if (report.repeat || report.pending || report.measured_step < 0) return;
    const auto step = report.measured_step + 1;
    if (!report.committed) return;
    const std::lock_guard lock(mutex_);
    run_.losses_[step] = report.loss;
    auto& times = applied_[step];
    if (++times.by_slot[slot] <= times.known) return;
    ++times.known;
    run_.steps_.push_back(step);
  }

  void add(const Membership& membership) {
    SeenMembership seen{membership.generation, {}, membership.resume_step};
    for (const auto& member : membership.members) seen.slots.push_back(member.process.slot);
    const std::lock_guard lock(mutex_);
    run_.memberships_.push_back(std::move(seen));
  }

  // Collective: all ranks are there, and one that is lost meanwhile has them do it again; not if they have gone back to
  // a snapshot, since the loop is over.
  void keep_weights(troupe::Rank& rank, Optimizer& optimizer) {
    const auto done = rank.steps_done();
    auto tensors = rank.retry([&] { return rank.state_dict(optimizer); });
    if (rank.steps_done() != done)
      throw Error(ErrorCode::state_lost, "weights", "a rank was lost behind the last step, and the others went back");
    if (!rank.is_main()) return;
    const std::lock_guard lock(mutex_);
    run_.weights_ = Weights(std::move(tensors));
  }

  const ClusterOptions options_;
  const std::vector<ClusterFault> faults_;
  const Job& job_;
  const Config config_;
  std::atomic<std::uint64_t> incarnation_{1};
  std::mutex mutex_;            // guards all below
  std::set<std::size_t> came_;  // of faults_
  TrainedRun run_;
  struct Applied {
    std::map<int, int> by_slot;  // how often a slot's ranks have
    int known = 0;
  };
  std::map<std::int64_t, Applied> applied_;  // by step
};

Cluster& Cluster::add(ClusterFault fault) {
  const int ranks = options_.hosts * options_.ranks_per_host + options_.spares;
  check_fault(fault, options_.hosts, ranks, options_.parallel);
  faults_.push_back(std::move(fault));
  return *this;
}

Cluster& Cluster::kill(Rank rank, At at) { return add({ClusterFault::Kind::kill, rank.number, std::move(at)}); }
Cluster& Cluster::stop(Rank rank, At at, std::chrono::milliseconds lasts) {
  return add({ClusterFault::Kind::stop, rank.number, std::move(at), lasts});
}
Cluster& Cluster::slow(Rank rank, Times times) {
  return add({ClusterFault::Kind::slow, rank.number, {}, 0ms, times.factor});
}
Cluster& Cluster::leave(Rank rank, At at) { return add({ClusterFault::Kind::leave, rank.number, std::move(at)}); }
Cluster& Cluster::cut(Host host, Host other, At at, std::chrono::milliseconds lasts) {
  return add({.kind = ClusterFault::Kind::cut, .at = std::move(at), .lasts = lasts, .host = host, .other = other});
}
Cluster& Cluster::drop(Message message) {
  return add({.kind = ClusterFault::Kind::drop, .at = {}, .message = std::move(message)});
}
Cluster& Cluster::delay(Message message, std::chrono::milliseconds by) {
  return add({.kind = ClusterFault::Kind::delay, .at = {}, .lasts = by, .message = std::move(message)});
}
Cluster& Cluster::reorder(Message message) {
  return add({.kind = ClusterFault::Kind::reorder, .at = {}, .message = std::move(message)});
}
Cluster& Cluster::clear() {
  faults_.clear();
  return *this;
}

TrainedRun Cluster::train(const Job& job, const Settings& settings) const {
  auto run = try_to_train(job, settings);
  if (run.exit_code() == 0 && !run.missed().empty()) {
    const auto& missed = run.missed()[0];
    throw Error(ErrorCode::usage, missed.to_code(),
                missed.hits_message() ? "it never came: no such message was sent" + types_of(missed.message, run)
                                      : "it never came: the rank did not reach that place",
                "steps count from 0, and the job made " + std::to_string(run.steps().size()));
  }
  return run;
}

TrainedRun Cluster::try_to_train(const Job& job, const Settings& settings) const {
  return ClusterRun(options_, faults_, job, settings).train();
}

TrainedRun Cluster::undisturbed(const Job& job, const Settings& settings) const {
  return ClusterRun(options_, {}, job, settings).train();
}

}  // namespace troupe::testing
