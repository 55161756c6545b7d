// A parameter server with bounded staleness: ranks take a step's samples by demand.
#include "strategies/replicated/parameter_server.hpp"
#include "launch/loop/rank_system.hpp"

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "actors/recovery/heal.hpp"
#include "launch/program/simulated_process.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using testing::largest_difference;

namespace {

std::shared_ptr<Dataset> points(std::int64_t count) {
  const auto input = torch::randn({count, 8}, at::detail::createCPUGenerator(5));
  return std::make_shared<TensorDataset>(
      input, (input.sum(1) > 0).to(torch::kLong) + (input.select(1, 0) > 1).to(torch::kLong));
}

Config server_config(std::int64_t staleness, std::int64_t batch_size, std::int64_t steps) {
  Config config;
  config.strategy = "parameter_server";
  config.staleness = staleness;
  config.batch_size = batch_size;
  config.max_steps = steps;
  config.epochs = 1000;
  config.lr = 0.1;
  config.collective_timeout = 30;
  return config;
}

struct ServerRun {
  std::vector<double> losses;  // by step
  NamedTensors state;          // rank 0's at the end
  std::vector<std::int64_t> staleness, shares;
  std::vector<std::pair<std::string, double>> figures;
  std::size_t sums = 0;  // tensors of gradients that the server holds of an update
  std::vector<std::string> errors;
};

/// `at_share` is called before each share's backward.
ServerRun train_with_server(int ranks, const Config& config,
                            const std::function<void(Rank&, std::int64_t share)>& at_share = {}) {
  ServerRun result;
  std::mutex mutex;
  const auto dataset = points(256);
  result.errors = testing::run_program(ranks, config, [&](Rank& rank) {
    auto model = rank.distribute([] { return std::make_shared<testing::SmallMlpImpl>(); });
    auto optimizer = rank.make_optimizer(*model);
    if (!config.resume.empty() || config.save_every > 0) rank.keep_checkpoints(*optimizer);
    std::int64_t share = 0;
    for (const auto& batch : rank.loader(dataset)) {
      if (at_share) at_share(rank, share);
      rank.backward(torch::nn::functional::cross_entropy(model->forward(batch.input), batch.target));
      const auto report = rank.step(*optimizer);
      share = report.pending ? share + 1 : 0;
      if (report.pending || !rank.is_main()) continue;
      std::lock_guard lock(mutex);
      result.losses.push_back(report.loss);
    }
    if (!rank.is_main()) return;
    auto& strategy = system_of(rank).compute().strategy();
    for (const auto& [name, tensor] : replicated_state(strategy, *optimizer))
      result.state.emplace_back(name, tensor.clone());
    if (const auto* server = dynamic_cast<ParameterServer*>(&strategy)) {
      result.staleness = server->server()->staleness();
      result.shares = server->server()->shares();
      result.sums = server->server()->update(0).gradients.size();
      result.figures = server->own_figures(rank.steps_done());
    }
  });
  CHECK(testing::joined(result.errors) == "");
  return result;
}

double mean_of_last(const std::vector<double>& losses, int n) {
  return std::accumulate(losses.end() - n, losses.end(), 0.0) / n;
}

std::int64_t sum_of(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

/// Something that happens once, and that others wait for.
class Signal {
 public:
  void count() {
    std::lock_guard lock(mutex_);
    ++counted_;
    changed_.notify_all();
  }
  bool wait_for(std::int64_t wanted) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(25), [&] { return counted_ >= wanted; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t counted_ = 0;
};

}  // namespace

TEST_CASE(
    "[X05] the update server makes means of gradients in the order in which they come, and hands each share out once") {
  UpdateServer server({.ranks = 2, .updates = 3, .shares = 2}, {torch::zeros({2})}, 2);
  server.begin_round();
  const auto gradient = [](double value, int used) {
    return UpdateServer::Update{{torch::full({2}, value)}, torch::tensor({used, 1 - used}, torch::kByte)};
  };
  auto answer = server.add(1, 0, gradient(1, 1));
  CHECK((answer.share == 2 && answer.complete == 0));
  answer = server.add(1, 0, gradient(3, 0));  // the same rank twice: by demand
  CHECK((answer.share == 3 && answer.complete == 1));
  CHECK((server.update(0).gradients[0] == 2).all().item<bool>());
  CHECK((server.update(0).used == 1).all().item<bool>());
  CHECK(server.add(1, 1, gradient(1, 1)).share == 4);
  CHECK(server.add(1, 1, gradient(1, 1)).share == 5);
  answer = server.add(0, 0, gradient(5, 1));  // two updates behind
  CHECK((answer.share == -1 && answer.complete == 2));
  CHECK_THROWS_AS(server.wait_for_all(std::chrono::milliseconds(1)), Error);
  CHECK(server.add(1, 2, gradient(7, 1)).complete == 3);
  server.wait_for_all(std::chrono::milliseconds(0));
  CHECK((server.update(2).gradients[0] == 6).all().item<bool>());
  CHECK((server.update(2).used[1] == 0).item<bool>());
  CHECK((server.staleness() == std::vector<std::int64_t>{5, 0, 1}));
  CHECK((server.shares() == std::vector<std::int64_t>{1, 5}));
  CHECK_THROWS_AS(server.add(0, 2, gradient(1, 1)), Error);  // the round is over
  server.begin_round();
  CHECK_THROWS_AS(server.add(0, 1, gradient(1, 1)), Error);  // of a version that there is not yet
  server.fail({ErrorCode::peer_lost, 1, "test", -1, {}, "gone", {}});
  CHECK_THROWS_AS(server.wait_for_all(std::chrono::seconds(60)), Error);
}

TEST_CASE(
    "[X05] an update of more shares than ranks is their mean, and the first share of a round is still each rank's "
    "own") {
  UpdateServer server({.ranks = 2, .updates = 2, .shares = 4}, {torch::zeros({1})}, 1);
  server.begin_round();
  const auto gradient = [](double value) {
    return UpdateServer::Update{{torch::full({1}, value)}, torch::ones({1}, torch::kByte)};
  };
  for (const std::int64_t next : {2, 3, 4}) {
    const auto answer = server.add(1, 0, gradient(static_cast<double>(next)));
    CHECK((answer.share == next && answer.complete == 0));
  }
  const auto answer = server.add(0, 0, gradient(7));
  CHECK((answer.share == 5 && answer.complete == 1));
  CHECK(server.update(0).gradients[0].item<float>() == 4);
  for (int share = 0; share < 2; ++share) CHECK(server.add(1, 1, gradient(1)).share == 6 + share);
  CHECK(server.add(1, 1, gradient(1)).share == -1);
  CHECK(server.add(0, 0, gradient(1)).complete == 2);
  server.wait_for_all(std::chrono::milliseconds(0));
  CHECK((server.staleness() == std::vector<std::int64_t>{7, 1}));
}

TEST_CASE(
    "[X05] parameter_server without staleness computes what ddp does, whoever takes how many shares of an update") {
  const int ranks = GENERATE(2, 4);
  auto config = server_config(0, 16, 30);
  config.server_shares = 2;
  config.clip_norm = 0.5;
  const auto found = train_with_server(ranks, config);
  CHECK(sum_of(found.shares) == 30 * 2 * ranks);
  CHECK(found.sums == 0);  // each rank adds up its own
  const auto all = static_cast<double>(sum_of(found.shares));
  const auto [fewest, most] = std::minmax_element(found.shares.begin(), found.shares.end());
  using Figures = std::vector<std::pair<std::string, double>>;
  CHECK(found.figures == Figures{{"staleness", 0.0},
                                 {"largest_share", static_cast<double>(*most) / all},
                                 {"smallest_share", static_cast<double>(*fewest) / all}});
  config.strategy = "ddp";
  const auto expected = train_with_server(ranks, config);
  CHECK(largest_difference(found.state, expected.state) < 1e-5);
  CHECK(largest_difference(found.losses, expected.losses) < 1e-5);
}

TEST_CASE("[X05] parameter_server without staleness computes what ddp does, on 2, 4 and 8 ranks") {
  const int ranks = GENERATE(2, 4, 8);
  const std::string optimizer = GENERATE("sgd", "adamw");
  const auto run = [&](const std::string& strategy) {
    testing::SmallTraining training(strategy, ranks);
    training.jobs.options.strategy.staleness = 0;
    training.jobs.options.training.clip_norm = 0.5;
    training.optimizer.optimizer = optimizer;
    training.lr = optimizer == "sgd" ? 0.1 : 0.003;
    training.steps = 30;
    auto result = training.run();
    CHECK(testing::joined(result.errors) == "");
    return result;
  };
  const auto expected = run("ddp"), found = run("parameter_server");
  CHECK(largest_difference(found.losses, expected.losses) < 1e-5);
  CHECK(largest_difference(found.state, expected.state) < 1e-5);
}

// One rank has no staleness: its updates are the steps of a batch that is 4 times smaller.
TEST_CASE("[X05] the updates within a step of parameter_server are optimizer steps, clipped as such") {
  auto config = server_config(3, 32, 20);
  config.optimizer = GENERATE(as<std::string>{}, "sgd", "adamw");
  config.lr = config.optimizer == "sgd" ? 0.1 : 0.003;
  config.clip_norm = 0.5;
  const auto found = train_with_server(1, config);
  config.strategy = "ddp";
  config.batch_size = 8;
  config.max_steps = 80;
  const auto expected = train_with_server(1, config);
  CHECK(largest_difference(found.state, expected.state) < 1e-6);
  REQUIRE(found.losses.size() == 20);
  CHECK(found.losses[3] ==
        Approx((expected.losses[12] + expected.losses[13] + expected.losses[14] + expected.losses[15]) / 4));
}

TEST_CASE("[X05] parameter_server trains as well as ddp with as many updates, on 2, 4 and 8 ranks") {
  const int ranks = GENERATE(2, 4, 8);
  auto config = server_config(3, 64, 60);
  config.lr = 0.03;
  const auto found = train_with_server(ranks, config);
  config.strategy = "ddp";
  config.batch_size = 16;
  config.max_steps = 240;
  const auto expected = train_with_server(ranks, config);
  const double fall = expected.losses.front() - mean_of_last(expected.losses, 32);
  CHECK(std::abs(mean_of_last(found.losses, 8) - mean_of_last(expected.losses, 32)) < 0.1 * fall);
  CHECK(sum_of(found.shares) == 60 * 4 * ranks);
  CHECK(sum_of(found.staleness) == 60 * 4 * ranks);
}

// The slow rank, the server's or another one, stands in its first share of a step until the others have done all other
// shares.
TEST_CASE("[X05] a slow rank holds nobody within the bound of parameter_server, which is never exceeded") {
  const int slow = GENERATE(0, 2);
  const std::int64_t server_shares = GENERATE(1, 2);
  constexpr int kRanks = 4;
  constexpr std::int64_t kSteps = 3, kStaleness = 3;
  const auto others = kRanks * (kStaleness + 1) * server_shares - 1;
  auto config = server_config(kStaleness, 160, kSteps);
  config.server_shares = server_shares;
  Signal done_by_others;
  std::atomic<bool> held{false};
  const auto found = train_with_server(kRanks, config, [&](Rank& rank, std::int64_t share) {
    if (rank.rank() != slow) return done_by_others.count();
    if (share == 0 && !done_by_others.wait_for(others * (rank.steps_done() + 1))) held = true;
  });
  CHECK(!held.load());
  REQUIRE(found.shares.size() == kRanks);
  CHECK(found.shares[static_cast<std::size_t>(slow)] == kSteps);
  CHECK(sum_of(found.shares) == kSteps * (others + 1));
  REQUIRE(found.staleness.size() == kStaleness + 1);
  CHECK(found.staleness[kStaleness] >= kSteps);  // the slow one's, in the last update of each step
}

// A rank dies in the middle of a step of which updates have been applied; the others go back to the step's start, bit
// by bit.
TEST_CASE("[X05] parameter_server outlives the server and a worker, and goes back to the step's start") {
  const int victim = GENERATE(0, 1);
  auto config = server_config(3, 48, 8);
  config.ranks = 3;
  config.optimizer = "adamw";
  config.lr = 0.003;
  auto simulation = testing::simulation_of(config);
  simulation.recovery.enabled = true;
  simulation.recovery.replace_timeout = std::chrono::seconds(60);
  std::mutex mutex;
  std::map<std::int64_t, double> losses;
  std::map<int, std::uint64_t> last;
  std::string failures;
  std::atomic<int> repeated{0}, went_back{0}, lives{0};
  const auto dataset = points(256);
  const int status = testing::run_simulation(
      config, simulation,
      [&](Rank& rank) {
        ++lives;
        const bool first_life = system_of(rank).compute().membership().generation == 1;
        auto model = rank.distribute([] { return std::make_shared<testing::SmallMlpImpl>(); });
        auto optimizer = rank.make_optimizer(*model);
        const auto state = [&] {
          return hash_tensors(replicated_state(system_of(rank).compute().strategy(), *optimizer));
        };
        std::uint64_t start = 0;
        std::int64_t share = 0;
        for (const auto& batch : rank.loader(dataset)) {
          if (share == 0) start = state();
          if (share > 0 && rank.steps_done() >= 4 && rank.rank() == victim && first_life &&
              state() != start)  // an update was applied
            std::dynamic_pointer_cast<SimulatedProcess>(fault_watch())->kill();
          if (rank.rank() != victim && rank.steps_done() >= 4)
            std::this_thread::sleep_for(std::chrono::milliseconds(3));  // it gets a second share
          rank.backward(torch::nn::functional::cross_entropy(model->forward(batch.input), batch.target));
          const auto report = rank.step(*optimizer);
          share = report.pending ? share + 1 : 0;
          if (report.repeat) {
            ++repeated;
            if (state() == start) ++went_back;
          }
          if (report.pending || report.repeat) continue;
          std::lock_guard lock(mutex);
          losses[report.step] = report.loss;
        }
        const auto hash = state();
        std::lock_guard lock(mutex);
        last[rank.rank()] = hash;
      },
      [&](int, const ErrorReport& report) { failures += report.to_string(); });
  CHECK(failures == "");
  CHECK(status == 0);
  CHECK(lives.load() == 4);
  CHECK(repeated.load() == 2);
  CHECK(went_back.load() == 2);
  CHECK(losses.size() == 8);
  REQUIRE(last.size() == 3);
  for (const auto& [rank, hash] : last) CHECK(hash == last[0]);
}

TEST_CASE("[X05] a parameter_server run is saved and resumed at a step's end, with the same bits on one rank") {
  const int ranks = GENERATE(1, 2);
  const testing::ScratchDirectory folder;
  auto config = server_config(3, 32, 12);
  config.optimizer = "adamw";
  config.lr = 0.003;
  config.checkpoint_dir = folder / "whole";
  config.save_every = 100;
  const auto whole = train_with_server(ranks, config);
  config.checkpoint_dir = folder / "parts";
  config.max_steps = 6;
  (void)train_with_server(ranks, config);
  config.max_steps = 12;
  config.resume = "latest";
  const auto rest = train_with_server(ranks, config);
  CHECK(rest.losses.size() == 6);
  if (ranks == 1) {
    CHECK(largest_difference(rest.state, whole.state) == 0);
  } else {
    CHECK(mean_of_last(rest.losses, 3) == Approx(mean_of_last(whole.losses, 3)).epsilon(0.1));
  }
}

TEST_CASE("[X05] a step of parameter_server with a loss that is not a number is skipped as a whole") {
  auto config = server_config(3, 32, 4);
  config.on_not_finite = "skip";
  NamedTensors before;
  bool poison = false;
  std::vector<bool> committed;
  const auto dataset = points(256);
  const auto errors = testing::run_program(2, config, [&](Rank& rank) {
    auto model = rank.distribute([] { return std::make_shared<testing::SmallMlpImpl>(); });
    auto optimizer = rank.make_optimizer(*model);
    for (const auto& batch : rank.loader(dataset)) {
      const bool first = rank.is_main() && rank.steps_done() == 2 && before.empty();
      if (first) {
        for (const auto& [name, tensor] : replicated_state(system_of(rank).compute().strategy(), *optimizer))
          before.emplace_back(name, tensor.clone());
        poison = true;
      }
      auto loss = torch::nn::functional::cross_entropy(model->forward(batch.input), batch.target);
      rank.backward(first ? loss * std::nan("") : loss);
      const auto report = rank.step(*optimizer);
      if (report.pending || !rank.is_main()) continue;
      committed.push_back(report.committed);
      if (report.step == 2)
        CHECK(largest_difference(replicated_state(system_of(rank).compute().strategy(), *optimizer), before) == 0);
    }
  });
  CHECK(testing::joined(errors) == "");
  CHECK(poison);
  CHECK((committed == std::vector<bool>{true, true, false, true}));
}

TEST_CASE("[X05] settings that parameter_server can't keep are refused by their names") {
  const auto refusal = [](const std::function<void(Config&)>& set) {
    auto config = server_config(1, 32, 1);
    set(config);
    return testing::joined(testing::run_program(2, config, [](Rank& rank) {
      auto model = rank.distribute([] { return std::make_shared<testing::SmallMlpImpl>(); });
      (void)rank.loader(points(64));
      for (const auto& batch : rank.uneven(std::vector<at::Tensor>{torch::zeros({4, 8})})) (void)batch;
    }));
  };
  CHECK_THAT(refusal([](Config& c) { c.comm_hook = "bf16"; }), Catch::Contains("comm_hook"));
  CHECK_THAT(refusal([](Config& c) { c.sync_batchnorm = true; }), Catch::Contains("sync_batchnorm"));
  const auto cuts_itself = Catch::Contains("grad_accum_steps: parameter_server cuts a step's batch itself");
  CHECK_THAT(refusal([](Config& c) { c.grad_accum_steps = 2; }), cuts_itself);
  CHECK_THAT(refusal([](Config& c) {
               c.grad_accum_steps = 2;
               c.staleness = 0;  // one share for each rank
             }),
             cuts_itself);
  CHECK_THAT(refusal([](Config& c) { c.batch_size = 30; }), Catch::Contains("batch_size"));
  CHECK_THAT(refusal([](Config&) {}), Catch::Contains("uneven"));
}
