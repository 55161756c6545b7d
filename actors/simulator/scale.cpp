#include "actors/simulator/scale.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/coordinator/coordinator.hpp"
#include "actors/simulator/world.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe::simulator {
namespace {

using namespace std::chrono_literals;

/// Stands for Compute: leaves its step as soon as it is told to.
struct Idle {
  RankSupervisorActor supervisor;
  ProcessId id;
};

class Crowd {
 public:
  explicit Crowd(int ranks) : ranks_(ranks), world_(1) {
    world_.counts_time = true;
    start_coordinator({});
    agent_ = &world_.start("agent", 0);
    agent_actor_ = world_.spawn(
        *agent_, [this](caf::event_based_actor* self, NoArgument) { return agent(self); }, NoArgument{});
    tell_of_agent();
    world_.on_message = [this](const Process&, const Process&, const caf::message& message) { count(message); };
    for (int slot = 0; slot < ranks; ++slot) start_rank({slot, static_cast<std::uint64_t>(slot) + 1});
  }
  ~Crowd() { world_.end(); }

  /// Runs until all members are in a generation after `generation`; counts what that takes.
  ScaleResult::Change change(std::uint64_t generation) {
    const auto started = std::chrono::steady_clock::now();
    const auto begun = world_.time();
    while (entered_[generation + 1] < expected_) {
      if (!world_.step() || world_.time() > begun + 300s)
        throw Error(ErrorCode::internal, "scale", "generation " + std::to_string(generation + 1) + " does not come");
    }
    counted_.spent = std::chrono::steady_clock::now() - started;
    counted_.coordinating = coordinator_->spent - std::exchange(coordinated_, coordinator_->spent);
    counted_.simulated = world_.time() - begun;
    return std::exchange(counted_, {});
  }
  void kill(int slot, bool replaced) {
    world_.kill(*members_[static_cast<std::size_t>(slot)]);
    if (!replaced) --expected_;
    replaces_ = replaced;
    caf::anon_send(agent_actor_, RankExited{{slot, incarnations_[static_cast<std::size_t>(slot)]}, 9});
  }
  /// The next coordinator knows the journal alone, and lacks one rank.
  void replace_coordinator() {
    world_.kill(*coordinator_);
    coordinated_ = 0ns;
    start_coordinator(journal_.back());
    tell_of_agent();
  }

 private:
  void start_coordinator(const std::optional<Membership>& resumed) {
    coordinator_ = &world_.start("coordinator", 0);
    CoordinatorOptions options;
    options.job_id = "crowd";
    options.world_size = ranks_;
    options.recovery.enabled = true;
    options.recovery.replace_timeout = 1s;
    options.record = [this](const Membership& next) { journal_.push_back(next); };
    options.resumed = resumed;
    options.draw_incarnation = [this] { return ++drawn_; };
    coordinator_actor_ = caf::actor_cast<caf::strong_actor_ptr>(world_.spawn(*coordinator_, coordinator, options));
  }
  caf::strong_actor_ptr connect(Process& from) {
    auto* connection = world_.connect(from, *coordinator_, "control");
    return connection ? world_.proxy(*connection, from, coordinator_actor_) : nullptr;
  }
  void tell_of_agent() {
    agents_coordinator_ = connect(*agent_);
    caf::anon_send(agent_actor_, JoinNode{.job_id = "crowd", .host = "host"});
  }
  caf::behavior agent(caf::event_based_actor* self) {
    return {
        [this, self](const JoinNode& join) {
          auto node = join;
          for (std::size_t slot = 0; slot < members_.size(); ++slot) {
            if (members_[slot] && members_[slot]->alive)
              node.started.push_back({static_cast<int>(slot), incarnations_[slot]});
          }
          self->send(caf::actor_cast<CoordinatorActor>(agents_coordinator_), node);
        },
        [this, self](const RankExited& exit) {
          self->send(caf::actor_cast<CoordinatorActor>(agents_coordinator_), exit);
        },
        [](const std::string&) {},
        [this](const StartRank& start) {
          if (replaces_) start_rank(start.process);
        },
        [](const KillRank&) {},
        [](const JobOver&) {},
    };
  }
  void start_rank(const ProcessId& id) {
    auto& process = world_.start("rank " + std::to_string(id.slot), 1);
    members_.resize(static_cast<std::size_t>(ranks_));
    incarnations_.resize(static_cast<std::size_t>(ranks_));
    members_[static_cast<std::size_t>(id.slot)] = &process;
    incarnations_[static_cast<std::size_t>(id.slot)] = id.incarnation;
    auto idle = std::make_shared<Idle>();
    idle->id = id;
    const auto compute = world_.spawn(
        process, [this, idle](caf::event_based_actor*, NoArgument) { return compute_of(*idle, idle); }, NoArgument{});
    RankSupervisorOptions options;
    options.join.job_id = "crowd";
    options.join.process = id;
    options.join.world_size = ranks_;
    options.join.host = "host";
    options.coordinator = connect(process);
    options.reconnect = [](auto, const auto&) { return caf::strong_actor_ptr(); };
    options.find_coordinator = [this, &process](const RankSupervisorActor& supervisor, milliseconds) {
      world_.after(50ms, [this, &process, supervisor] {
        if (process.alive) caf::anon_send(supervisor, CoordinatorFound{connect(process)});
      });
    };
    options.compute = caf::actor_cast<caf::actor>(compute);
    options.status = std::make_shared<RankStatus>();
    idle->supervisor = world_.spawn(process, rank_supervisor, options);
    caf::anon_send(idle->supervisor, JoinRank{60s});
  }
  caf::behavior compute_of(const Idle&, const std::shared_ptr<Idle>& idle) {
    return {
        [this](const Membership& next) { ++entered_[next.generation]; },
        [idle](const InterruptRanks& interrupt) {
          RankInterrupted report;
          report.process = idle->id;
          report.generation = interrupt.generation;
          caf::anon_send(idle->supervisor, report);
        },
        [](const AbortJob&) {},
        [](const JoinAccepted&) {},
    };
  }
  void count(const caf::message& message) {
    if (message.match_elements<Heartbeat>() || message.match_elements<CoordinatorBeat>()) return;
    ++counted_.count;
    ++counted_.messages[name_of(message)];
  }

  int ranks_;
  World world_;
  Process* coordinator_ = nullptr;
  std::chrono::nanoseconds coordinated_{0};  // by the coordinator, before the change under way
  Process* agent_ = nullptr;
  caf::strong_actor_ptr coordinator_actor_, agents_coordinator_;
  caf::actor agent_actor_;
  std::vector<Process*> members_;  // by slot: the newest life
  std::vector<std::uint64_t> incarnations_;
  std::vector<Membership> journal_;
  std::map<std::uint64_t, std::size_t> entered_;
  std::size_t expected_ = static_cast<std::size_t>(ranks_);
  std::uint64_t drawn_ = 1'000'000;
  bool replaces_ = true;
  ScaleResult::Change counted_;
};

}  // namespace

ScaleResult measure_scale(int ranks) {
  Crowd crowd(ranks);
  ScaleResult result;
  result.forming = crowd.change(0);
  crowd.kill(ranks / 2, true);
  result.replacing = crowd.change(1);
  crowd.kill(ranks / 2, false);
  result.shrinking = crowd.change(2);
  crowd.replace_coordinator();
  crowd.kill(ranks / 3, false);
  result.taking_over = crowd.change(3);
  return result;
}

}  // namespace troupe::simulator
