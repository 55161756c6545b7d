#include "launch/program/strategy_conformance.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "actors/strategy/evaluation.hpp"
#include "actors/strategy/saved_state.hpp"
#include "launch/loop/rank.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/network/actor_system.hpp"
#include "launch/process/formatted.hpp"
#include "launch/program/simulate.hpp"
#include "strategies/shipped_strategies.hpp"
#include "tensor_io/base/random_seed.hpp"
#include "tensor_io/data/datasets.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kSamples = 96, kBatch = 24, kStepsPerEpoch = kSamples / kBatch;
constexpr std::chrono::seconds kDeadline{120};  // of one job

struct TrialFault {
  int slot = 0;
  PlacedFault fault;
};

struct Trial {
  std::string strategy;
  int ranks = 1;
  std::int64_t epochs = 16;
  std::vector<TrialFault> faults;  // in the first life of their slots

  std::int64_t steps() const noexcept { return epochs * kStepsPerEpoch; }
  int kills() const {
    return static_cast<int>(
        std::count_if(faults.begin(), faults.end(), [](const auto& f) { return f.fault.kind == ChaosKind::kill; }));
  }
  std::string describe() const {
    auto text = strategy + " on " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
    for (const auto& [slot, fault] : faults) {
      text += ", " + name_of(*fault.kind) + " rank " + std::to_string(slot) + " at '" + fault.place + "' of step " +
              std::to_string(fault.step);
      if (fault.lasts.count() > 0) text += " for " + std::to_string(fault.lasts.count()) + " ms";
    }
    return text;
  }
};

struct Outcome {
  std::map<std::int64_t, double> losses;  // by step
  std::map<int, double> last;             // over all samples, by rank
  bool replicas_equal = true, shards_state = false;
  int generations = 1, status = -1;
  std::string failure;

  double mean_last() const {
    double sum = 0;
    for (const auto& [rank, loss] : last) sum += loss;
    return last.empty() ? std::nan("") : sum / static_cast<double>(last.size());
  }
};

std::shared_ptr<Dataset> samples() {
  const auto input = torch::randn({kSamples, 6}, at::detail::createCPUGenerator(3));
  return std::make_shared<TensorDataset>(
      input, (input.sum(1) > 0).to(torch::kLong) + (input.select(1, 0) > 1).to(torch::kLong));
}

at::Tensor loss_of(torch::nn::Sequential& model, const Batch& batch) {
  return torch::nn::functional::cross_entropy(model->forward(batch.input), batch.target);
}

// All threads of one job share it, and outlive whoever waits for them.
struct Running {
  Trial trial;
  Config config;
  std::function<void(const std::string&)> log;
  std::mutex mutex;
  Outcome outcome;  // guarded by mutex

  void train(Rank& rank) {
    torch::nn::Sequential model{nullptr};
    {
      namespace nn = torch::nn;
      const auto lock = seed_model(config.seed);
      model = nn::Sequential(nn::Linear(6, 24), nn::Tanh(), nn::Linear(24, 24), nn::Tanh(), nn::Linear(24, 3));
    }
    rank.distribute(model);
    auto optimizer = rank.make_optimizer(*model);
    const auto dataset = samples();
    for (const auto& batch : rank.loader(dataset)) {
      try {
        rank.backward(loss_of(model, batch));
      } catch (const Error& error) {  // a strategy's collective in forward or backward
        rank.recover(error);
        continue;
      }
      const auto report = rank.step(*optimizer);
      if (report.repeat || report.pending) continue;
      std::lock_guard lock(mutex);
      outcome.losses[report.step] = report.loss;
    }
    rank.retry([&] {
      torch::NoGradGuard no_grad;
      auto& strategy = system_of(rank).compute().strategy();
      std::vector<std::int64_t> all(kSamples);
      for (std::int64_t i = 0; i < kSamples; ++i) all[static_cast<std::size_t>(i)] = i;
      strategy.evaluation().begin_evaluation();
      const double last = loss_of(model, dataset->get_batch(all, {})).item<double>();
      strategy.evaluation().end_evaluation();
      rank.barrier();
      std::lock_guard lock(mutex);
      outcome.last[rank.rank()] = last;
      outcome.replicas_equal = strategy.replicas_equal();
      outcome.shards_state = strategy.saved_state().shards_state();
    });
  }

  ErrorReport live(caf::actor_system& system, const RankSystemOptions& options) {
    ErrorReport ended{ErrorCode::ok, options.process.slot, {}, -1, {}, {}, {}};
    try {
      Rank rank(system, config, options);
      try {
        train(rank);
        system_of(rank).finish(ended);
      } catch (...) {
        ended = system_of(rank).fail(std::current_exception());
      }
    } catch (...) {
      ended = report_of(std::current_exception());
    }
    return ended;
  }

  void run() {
    SimulationOptions simulation;
    simulation.world_size = trial.ranks;
    simulation.rank.job_id = "conformance";
    simulation.rank.training = static_cast<const TrainingOptions&>(config);
    simulation.rank.strategy = static_cast<const StrategyOptions&>(config);
    simulation.rank.communicator = static_cast<const CommunicatorSettings&>(config);
    simulation.recovery.enabled = true;
    simulation.recovery.max_restarts = 100;
    simulation.recovery.replace_timeout = 60s;  // as many ranks as before
    simulation.log = [this](const std::string& line) {
      std::lock_guard lock(mutex);
      if (line.starts_with("generation ") && line.find(" is interrupted") == std::string::npos) ++outcome.generations;
      if (log) log("  " + line);
    };
    simulation.faults = [this](int slot, int life) {
      std::vector<PlacedFault> mine;
      for (const auto& fault : trial.faults) {
        if (life == 0 && fault.slot == slot) mine.push_back(fault.fault);
      }
      return mine;
    };
    ActorSystemConfig system_config(false);
    caf::actor_system system(system_config);
    const int status = simulate(system, simulation, [&](const RankSystemOptions& options) {
      const auto ended = live(system, options);
      if (ended.code != ErrorCode::ok && ended.code != ErrorCode::fenced) {
        std::lock_guard lock(mutex);
        outcome.failure += (outcome.failure.empty() ? "" : "; ") + ended.to_string();
      }
      return exit_code(ended.code);
    });
    std::lock_guard lock(mutex);
    outcome.status = status;
  }
};

class Suite {
 public:
  explicit Suite(const ConformanceOptions& options) : options_(options) { report_.strategy = options.strategy; }

  ConformanceReport run() {
    converges();
    survives_deaths();
    never_deadlocks();
    return report_;
  }

 private:
  Outcome outcome_of(const Trial& trial) {
    auto running = std::make_shared<Running>();
    running->trial = trial;
    running->log = options_.log;
    auto& config = running->config;
    config.batch_size = kBatch;
    config.lr = 0.1;
    config.snapshot_every = 2;
    config.bucket_cap_mb = config.first_bucket_mb = 1e-3;  // several buckets
    config.collective_timeout = 20;
    config.strategy = trial.strategy;  // for configure to see
    if (options_.configure) options_.configure(config);
    config.strategy = trial.strategy;
    config.ranks = trial.ranks;
    config.epochs = trial.epochs;
    if (options_.log) options_.log(trial.describe());
    ++report_.jobs;
    report_.deaths += trial.kills();
    std::promise<void> ended;
    auto end = ended.get_future();
    std::thread([running, ended = std::move(ended)]() mutable {
      running->run();
      ended.set_value_at_thread_exit();
    }).detach();
    const bool in_time = end.wait_for(kDeadline) == std::future_status::ready;
    std::lock_guard lock(running->mutex);
    auto outcome = running->outcome;
    if (!in_time) {
      outcome.failure = "it does not end within " + std::to_string(kDeadline.count()) + " s";
      outcome.status = -1;
    }
    return outcome;
  }

  const Outcome& undisturbed(const std::string& strategy, int ranks, std::int64_t epochs) {
    const auto key = std::make_tuple(strategy, ranks, epochs);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    const Trial trial{strategy, ranks, epochs, {}};
    auto outcome = outcome_of(trial);
    ends_well(trial, outcome);
    return known_[key] = outcome;
  }

  void fail(const Trial& trial, const std::string& what) { report_.failures.push_back(trial.describe() + ": " + what); }

  bool ends_well(const Trial& trial, const Outcome& outcome) {
    const auto before = report_.failures.size();
    if (outcome.status != 0) {
      fail(trial, outcome.failure.empty() ? "exit code " + std::to_string(outcome.status) : outcome.failure);
      return false;
    }
    for (std::int64_t step = 0; step < trial.steps(); ++step) {
      if (!outcome.losses.contains(step)) fail(trial, "step " + std::to_string(step) + " was not done");
    }
    if (outcome.last.size() != static_cast<std::size_t>(trial.ranks)) fail(trial, "not all ranks came to the end");
    if (trial.kills() == 0 && outcome.generations > 1)
      fail(trial, "a deadline ended a wait: a deadlock, or a rank that failed");
    return report_.failures.size() == before;
  }

  // As a share of how far one rank's loss fell.
  void near_one_rank(const Trial& trial, const Outcome& outcome) {
    const auto& one = undisturbed("ddp", 1, trial.epochs);
    if (one.losses.empty()) return;
    const double fall = one.losses.begin()->second - one.mean_last();
    const double gap = std::abs(outcome.mean_last() - one.mean_last()) / fall;
    if (!(gap <= report_.worst_gap)) report_.worst_gap = gap;
    if (gap <= options_.loss_bound) return;
    fail(trial, "the loss ends at " + std::to_string(outcome.mean_last()) + ", one rank's at " +
                    std::to_string(one.mean_last()) + " after a fall of " + std::to_string(fall) + ": a gap of " +
                    std::to_string(gap) + ", allowed " + std::to_string(options_.loss_bound));
  }

  void same_bits(const Trial& trial, const Outcome& outcome, const Outcome& expected) {
    for (const auto& [step, loss] : expected.losses) {
      const auto found = outcome.losses.find(step);
      if (found != outcome.losses.end() &&
          std::bit_cast<std::uint64_t>(found->second) == std::bit_cast<std::uint64_t>(loss))
        continue;
      return fail(trial,
                  "the loss of step " + std::to_string(step) + " is not that of the undisturbed job, bit for bit");
    }
    if (outcome.last != expected.last) fail(trial, "the last loss is not that of the undisturbed job, bit for bit");
  }

  void converges() {
    for (const int ranks : options_.ranks) {
      const Trial trial{options_.strategy, ranks, 16, {}};
      const auto& outcome = undisturbed(trial.strategy, trial.ranks, trial.epochs);
      if (outcome.status == 0) near_one_rank(trial, outcome);
    }
  }

  void survives_deaths() {
    constexpr int kRanks = 3;
    constexpr std::int64_t kEpochs = 16;
    struct Place {
      const char* name;
      std::int64_t step;
      bool always;  // every strategy comes by
    };
    static const std::vector<Place> places{{"data", 5, false},       {"forward", 5, true},   {"backward", 6, true},
                                           {"collective", 8, false}, {"reduced", 7, true},   {"vote", 8, true},
                                           {"voted", 7, true},       {"committed", 7, true}, {"optimizer", 7, true},
                                           {"optimizer", 10, true},  {"forward", 8, true}};
    int slot = 0;
    for (const auto& place : places) {
      const Trial trial{
          options_.strategy, kRanks, kEpochs, {{slot++ % kRanks, {place.name, place.step, ChaosKind::kill, 0ms}}}};
      const auto outcome = outcome_of(trial);
      if (!ends_well(trial, outcome)) continue;
      if (place.always && outcome.generations < 2) fail(trial, "no rank was killed");
      if (outcome.replicas_equal && options_.same_bits)
        same_bits(trial, outcome, undisturbed(trial.strategy, trial.ranks, trial.epochs));
      near_one_rank(trial, outcome);
    }
  }

  void never_deadlocks() {
    static const std::vector<std::string> places{"data",    "forward", "backward", "buckets",   "collective",
                                                 "reduced", "vote",    "voted",    "committed", "optimizer"};
    constexpr std::int64_t kEpochs = 3;
    for (int number = 1; number <= options_.schedules; ++number) {
      std::mt19937_64 random(static_cast<std::uint64_t>(number));
      const auto draw = [&](std::int64_t from, std::int64_t to) {
        return from + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(to - from + 1));
      };
      Trial trial{options_.strategy, static_cast<int>(draw(2, 4)), kEpochs, {}};
      const auto faults = draw(2, 8);
      const bool with_death = draw(1, 4) == 1;
      for (std::int64_t i = 0; i < faults; ++i) {
        TrialFault fault;
        fault.slot = static_cast<int>(draw(0, trial.ranks - 1));
        fault.fault.place = places[static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(places.size()) - 1))];
        fault.fault.step = draw(0, trial.steps() - 2);
        fault.fault.kind = with_death && i == 0 ? ChaosKind::kill : ChaosKind::stop;
        // Shards have no copy before the first snapshot.
        if (fault.fault.kind == ChaosKind::kill && undisturbed(trial.strategy, trial.ranks, trial.epochs).shards_state)
          fault.fault.step = std::max<std::int64_t>(2, fault.fault.step);
        if (fault.fault.kind == ChaosKind::stop) fault.fault.lasts = std::chrono::milliseconds(draw(1, 20));
        trial.faults.push_back(std::move(fault));
      }
      const auto failed = report_.failures.size();
      const auto outcome = outcome_of(trial);
      if (ends_well(trial, outcome) && options_.same_bits && trial.kills() == 0)
        same_bits(trial, outcome, undisturbed(trial.strategy, trial.ranks, trial.epochs));
      for (auto f = failed; f < report_.failures.size(); ++f)
        report_.failures[f] = "schedule " + std::to_string(number) + ", " + report_.failures[f];
    }
  }

  const ConformanceOptions& options_;
  ConformanceReport report_;
  std::map<std::tuple<std::string, int, std::int64_t>, Outcome> known_;
};

}  // namespace

std::string ConformanceReport::to_string() const {
  const auto gap = formatted("%.2g", worst_gap);
  const auto counts =
      std::to_string(jobs) + " jobs, " + std::to_string(deaths) + " deaths, worst gap to one rank's loss " + gap;
  if (passed()) return strategy + " conforms: " + counts;
  auto text = strategy + " does not conform (" + counts + "):";
  for (const auto& failure : failures) text += "\n  " + failure;
  return text;
}

ConformanceReport strategy_conformance(const ConformanceOptions& options) {
  register_shipped_strategies();
  StrategyContext probe;
  if (!strategies().contains(options.strategy)) {
    probe.options.strategy = options.strategy;
    (void)make_strategy(std::move(probe));  // throws, with the known names
  }
  return Suite(options).run();
}

}  // namespace troupe
