// The learning rate as a function of the program's.
#include <cmath>
#include <limits>
#include <mutex>
#include <numbers>

#include "actors/block/block.hpp"
#include "launch/program/job_of.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/optimizer/torch_optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/judged_net.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

struct ScheduledCellImpl : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(16, 16));
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(linear(x)); }
};
TROUPE_BLOCK(ScheduledCell);

struct ScheduledNetImpl : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(6, 16));
  ScheduledCell a = register_module("a", ScheduledCell()), b = register_module("b", ScheduledCell());
  torch::nn::Linear head = register_module("head", torch::nn::Linear(16, 2));
  at::Tensor forward(const at::Tensor& x) { return head(b(a(in(x)))); }
};
TORCH_MODULE(ScheduledNet);

JobOf<ScheduledNet> scheduled_job() {
  return {.data = Datasets{testing::parted_data(3, 64, 6), nullptr}, .loss = [](ScheduledNet& net, const Batch& batch) {
            return Loss(torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target));
          }};
}

Config scheduled_config(const std::string& strategy) {
  Config config;
  config.strategy = strategy.substr(0, strategy.find(' '));
  config.early_update = strategy.ends_with(" early");
  config.staleness = strategy.ends_with(" shares") ? 1 : 0;
  config.server_shares = strategy.ends_with(" shares") ? 2 : 1;
  if (config.strategy == "pipeline") config.grad_accum_steps = 2;
  config.batch_size = 16;
  config.epochs = 2;
  config.lr = 0.1;
  config.run_dir = "";
  config.sync_every = 2;
  return config;
}

struct ScheduledRun {
  NamedTensors state;
  std::vector<double> reported, learning_rates;  // rank 0's, by step
  std::string errors;
};

ScheduledRun run_scheduled(Config config, const JobOf<ScheduledNet>& job, SimulationOptions* given = nullptr,
                           const std::string& folder = {}) {
  testing::ScratchDirectory scratch;
  config.ranks = 2;
  config.checkpoint_dir = folder.empty() ? scratch.path() : folder;
  ScheduledRun run;
  auto simulation = testing::simulation_of(config);
  if (given != nullptr) simulation.recovery = given->recovery, simulation.faults = given->faults;
  TrainingWatch watch;
  std::mutex mutex;
  watch.step = [&](const Rank& rank, const StepReport& report) {
    std::lock_guard lock(mutex);
    if (!rank.is_main() || report.repeat || report.pending) return;
    run.reported.push_back(report.lr);
    run.learning_rates.push_back(rank.learning_rate());
  };
  testing::run_simulation(
      config, simulation, [&](Rank& rank) { train(Job(job), rank, watch); },
      [&](int, const ErrorReport& report) { run.errors += report.to_string() + "\n"; });
  if (run.errors.empty()) run.state = load_checkpoint(config.checkpoint_dir, "latest").state.tensors;
  return run;
}

void check_equal_bits(const ScheduledRun& run, const ScheduledRun& reference) {
  CHECK(run.errors == "");
  REQUIRE(reference.state.size() > 6);
  REQUIRE(run.state.size() == reference.state.size());
  for (std::size_t i = 0; i < run.state.size(); ++i) {
    INFO(run.state[i].first);
    CHECK(run.state[i].first == reference.state[i].first);
    CHECK(run.state[i].second.equal(reference.state[i].second));
  }
}

double half_cosine(std::int64_t step, std::int64_t total) {
  return 0.5 * (1 + std::cos(std::numbers::pi * static_cast<double>(step) / static_cast<double>(total)));
}

double by_step(std::int64_t step, std::int64_t) { return step % 3 == 0 ? 1.0 : 0.25; }

}  // namespace

TEST_CASE("[T02] a schedule by code has the bits of the config's schedule that it repeats, with every strategy") {
  const std::string strategy = GENERATE("ddp", "ddp early", "fsdp", "zero1", "zero2", "local_sgd", "diloco",
                                        "parameter_server", "parameter_server shares", "pipeline");
  const bool theirs = strategy == "ddp" || strategy == "fsdp" ? GENERATE(false, true) : false;
  INFO(strategy << (theirs ? " with torch::optim" : ""));
  auto config = scheduled_config(strategy);
  auto job = scheduled_job();
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
  std::mutex mutex;
  if (theirs) {
    job.optimizer = [&](const ScheduledNetImpl& net) -> std::unique_ptr<Optimizer> {
      std::lock_guard lock(mutex);
      optimizers.push_back(
          std::make_unique<torch::optim::SGD>(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
      return std::make_unique<TorchOptimizer>(*optimizers.back(), net);
    };
    config.lr = Config().lr;
  }
  auto theirs_config = config;
  theirs_config.schedule = "cosine";
  const auto reference = run_scheduled(theirs_config, job);
  job.schedule = half_cosine;
  const auto run = run_scheduled(config, job);
  if (config.server_shares == 1) check_equal_bits(run, reference);  // who takes a share is not the same each time
  CHECK(run.errors == "");
  REQUIRE(run.reported.size() == 8);
  CHECK(run.reported == reference.reported);
  CHECK(run.learning_rates == reference.learning_rates);
  CHECK(run.reported.back() < 0.01);
}

TEST_CASE(
    "[T02] a run with a schedule by code goes on with the same rates when it is resumed, and when a rank is lost") {
  const auto config = scheduled_config(GENERATE(as<std::string>{}, "ddp", "fsdp"));
  auto job = scheduled_job();
  job.schedule = by_step;
  const auto reference = run_scheduled(config, job);
  REQUIRE(reference.reported == std::vector<double>{0.1, 0.025, 0.025, 0.1, 0.025, 0.025, 0.1, 0.025});
  SECTION("resumed") {
    testing::ScratchDirectory folder;
    auto first = config;
    first.max_steps = 4;
    run_scheduled(first, job, nullptr, folder.path());
    auto second = config;
    second.resume = "latest";
    const auto run = run_scheduled(second, job, nullptr, folder.path());
    check_equal_bits(run, reference);
    CHECK(run.reported == std::vector<double>{0.025, 0.025, 0.1, 0.025});
  }
  SECTION("a rank is replaced") {
    SimulationOptions simulation;
    simulation.recovery.enabled = true;
    simulation.faults = [](int slot, int life) {
      std::vector<PlacedFault> faults;
      if (slot == 1 && life == 0) faults.push_back({"backward", 4, ChaosKind::kill, {}});
      return faults;
    };
    check_equal_bits(run_scheduled(config, job, &simulation), reference);
  }
}

TEST_CASE("[T02] a factor that is negative or not finite ends the job, and the error names the step") {
  const auto [bad, text] =
      GENERATE(table<double, std::string>({{std::nan(""), "returned nan for step 3 of 8"},
                                           {-0.5, "returned -0.5 for step 3 of 8"},
                                           {std::numeric_limits<double>::infinity(), "returned inf"}}));
  auto job = scheduled_job();
  job.schedule = [bad = bad](std::int64_t step, std::int64_t) { return step == 3 ? bad : 1.0; };
  const auto run = run_scheduled(scheduled_config(GENERATE(as<std::string>{}, "ddp", "ddp early")), job);
  CHECK_THAT(run.errors, Catch::Contains("schedule: the program's function") && Catch::Contains(text));
  CHECK(run.reported.size() == 3);
}

TEST_CASE("[T02] a schedule by code and one by the config are refused, and so is one that comes twice or late") {
  auto config = scheduled_config("ddp");
  config.checkpoint_dir = "";
  config.save_every = -1;
  const auto error_of = [&](const std::function<void(Rank&)>& body) {
    return testing::run_program(1, config, body)[0];
  };
  const auto sets = [](Rank& rank) { rank.schedule(by_step); };
  SECTION("both") {
    config.schedule = "cosine";
    config.sources["schedule"] = "--schedule";
    CHECK_THAT(error_of(sets), Catch::Contains("schedule: it is 'cosine', set by --schedule, and this program's"));
  }
  SECTION("a warm-up") {
    config.warmup_steps = 5;
    CHECK_THAT(error_of(sets), Catch::Contains("warmup_steps: it is 5, and this program's"));
  }
  SECTION("where cosine would end") {
    config.lr_min = 0.01;
    CHECK_THAT(error_of(sets), Catch::Contains("lr_min: it is 0.01, and this program's"));
  }
  SECTION("an empty one, and a second one") {
    CHECK_THAT(error_of([](Rank& rank) { rank.schedule({}); }), Catch::Contains("the function is empty"));
    CHECK_THAT(error_of([&](Rank& rank) {
                 sets(rank);
                 sets(rank);
               }),
               Catch::Contains("called before"));
  }
  SECTION("within the loop") {
    CHECK_THAT(error_of([&](Rank& rank) {
                 rank.distribute([] { return ScheduledNet(); });
                 for ([[maybe_unused]] const auto& batch : rank.loader(scheduled_job().data(config).train)) sets(rank);
               }),
               Catch::Contains("the loop has begun"));
  }
}

TEST_CASE("[T02] a schedule by code has no length in a loop without a loader and max_steps, and max_steps with it") {
  auto config = scheduled_config("ddp");
  config.save_every = -1;
  config.max_steps = GENERATE(0, 5);
  std::vector<std::int64_t> totals;
  const auto errors = testing::run_program(1, config, [&](Rank& rank) {
    rank.schedule([&](std::int64_t step, std::int64_t total) {
      totals.push_back(total);
      return step == 0 ? 0.5 : 1.0;
    });
    CHECK(rank.learning_rate() == 0.05);
  });
  CHECK(errors[0] == "");
  CHECK(totals == std::vector<std::int64_t>{config.max_steps});
}
