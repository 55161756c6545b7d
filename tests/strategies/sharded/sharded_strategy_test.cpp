#include "strategies/sharded/sharded_strategy.hpp"

#include <torch/torch.h>

#include <atomic>

#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/optimizer/torch_optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using testing::joined;
using testing::largest_difference;
using testing::model_part;
using testing::one_group;
using testing::SmallTraining;

namespace {

const std::vector<std::string> kStrategies = {
    "zero1", "zero2", "fsdp full_shard", "fsdp shard_grad_op", "fsdp hybrid_shard", "fsdp no_shard"};

/// AdamW divides by the root of what it averages, and so makes much of the last bit of a small gradient: 1e-6 over 50
/// steps needs f64.
void use(SmallTraining& training, const std::string& optimizer, at::ScalarType dtype) {
  training.optimizer.optimizer = optimizer;
  training.lr = optimizer == "sgd" ? 0.1 : 0.01;
  if (dtype == at::kFloat) return;
  training.model = [dtype] {
    auto model = testing::make_seeded<testing::SmallMlpImpl>(1);
    model->to(dtype);
    return model;
  };
  training.forward = [dtype](torch::nn::Module& model, const at::Tensor& input) {
    return dynamic_cast<testing::SmallMlpImpl&>(model).forward(input.to(dtype));
  };
}

const SmallTraining::Result& alone(const std::string& optimizer, at::ScalarType dtype = at::kFloat) {
  static std::map<std::pair<std::string, at::ScalarType>, SmallTraining::Result> results;
  auto [found, is_new] = results.try_emplace({optimizer, dtype});
  if (is_new) {
    SmallTraining training("ddp", 1);
    use(training, optimizer, dtype);
    found->second = training.run();
  }
  return found->second;
}

/// A layer that only rank 0 uses, behind a batch norm: the ranks send its gradients at different ends of a backward
/// that has collectives.
struct UnevenNormImpl : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(8, 12));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(12));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(12, 3));
  torch::nn::Linear extra = register_module("extra", torch::nn::Linear(3, 3));
  at::Tensor forward(const at::Tensor& input, bool all) {
    const auto y = out(norm(in(input)));
    return all ? y + extra(y) : y;
  }
};

}  // namespace

TEST_CASE("[F01] [F06] sharded training on 1, 2 and 4 ranks has the losses and the parameters of one rank",
          "[sharded]") {
  const auto strategy = GENERATE(from_range(kStrategies));
  const int world_size = GENERATE(1, 2, 4);
  const std::string optimizer = GENERATE("sgd", "adamw");
  const auto dtype = GENERATE(at::kFloat, at::kDouble);
  INFO(strategy << " on " << world_size << " with " << optimizer << " in " << at::toString(dtype));
  SmallTraining training(strategy, world_size);
  training.jobs.options.strategy.fsdp_shard_size = world_size == 4 ? 2 : 1;  // of hybrid_shard
  use(training, optimizer, dtype);
  const auto many = training.run();
  REQUIRE(joined(many.errors) == "");
  const auto& one = alone(optimizer, dtype);
  CHECK(largest_difference(one.losses, many.losses) < 1e-4);
  CHECK(largest_difference(model_part(one.state), model_part(many.state)) < (dtype == at::kDouble ? 1e-9
                                                                             : optimizer == "sgd" ? 1e-6
                                                                                                  : 1e-4));
  CHECK(one.losses.back() < one.losses.front() * 0.7);
  CHECK(many.state.size() == one.state.size());
}

TEST_CASE("[F06] over TCP the numbers are those of shared memory", "[sharded]") {
  const auto strategy = GENERATE(from_range(kStrategies));
  INFO(strategy);
  std::vector<SmallTraining::Result> results;
  for (const std::string backend : {"shm", "gloo"}) {
    SmallTraining training(strategy, 2);
    training.steps = 10;
    training.jobs.options.communicator.backend = backend;
    results.push_back(training.run());
    REQUIRE(joined(results.back().errors) == "");
  }
  CHECK(largest_difference(results[0].state, results[1].state) < 1e-6);
}

TEST_CASE("[F06] each rank keeps optimizer state for its own slices only", "[sharded]") {
  const std::string strategy = GENERATE("zero1", "zero2", "fsdp full_shard");
  std::vector<std::int64_t> numel(4, 0);
  SmallTraining training(strategy, 4);
  training.steps = 2;
  training.optimizer.optimizer = "adamw";
  training.at_end = [&](RankSystem& system, Optimizer& optimizer) {
    for (const auto& [name, tensor] : optimizer.state()) {
      if (tensor.dim() > 0) numel[static_cast<std::size_t>(system.compute().rank())] += tensor.numel();
    }
  };
  const auto result = training.run();
  REQUIRE(joined(result.errors) == "");
  const std::int64_t all = 8 * 33 + 33 + 33 * 29 + 29 + 29 * 3 + 3;
  CHECK(numel[0] + numel[1] + numel[2] + numel[3] == 2 * all);
  for (const auto n : numel) CHECK(n < all);  // half of everything, where even shares would be a quarter of twice
}

TEST_CASE("[F06] groups keep their weight decay and rate, and a torch::optim optimizer gets the slices too",
          "[sharded]") {
  const std::string kind = GENERATE("groups", "sgd", "adam", "adamw", "rmsprop", "adagrad");
  const std::string strategy = GENERATE("zero1", "fsdp full_shard");
  INFO(kind << ", " << strategy);
  std::vector<std::shared_ptr<torch::optim::Optimizer>> kept;
  std::mutex mutex;
  const auto make = [&](torch::nn::Module& model) -> std::unique_ptr<Optimizer> {
    auto groups = one_group(model);
    if (kind == "groups") {
      ParameterGroup biases;
      biases.weight_decay = 0.3;
      biases.lr_scale = 0.5;
      auto& weights = groups.front().parameters;
      for (auto i = weights.begin(); i != weights.end();) {
        if (i->first.find("bias") == std::string::npos) {
          ++i;
          continue;
        }
        biases.parameters.push_back(*i);
        i = weights.erase(i);
      }
      groups.push_back(biases);
      return make_optimizer(OptimizerOptions{}, groups);
    }
    using namespace torch::optim;
    std::shared_ptr<torch::optim::Optimizer> made;
    if (kind == "sgd")
      made = std::make_shared<SGD>(model.parameters(), SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
    if (kind == "adam") made = std::make_shared<Adam>(model.parameters(), AdamOptions(0.01).amsgrad(true));
    if (kind == "adamw") made = std::make_shared<AdamW>(model.parameters(), AdamWOptions(0.01));
    if (kind == "rmsprop") made = std::make_shared<RMSprop>(model.parameters(), RMSpropOptions(0.01).momentum(0.9));
    if (kind == "adagrad")
      made = std::make_shared<Adagrad>(model.parameters(), AdagradOptions(0.01).initial_accumulator_value(0.1));
    std::lock_guard lock(mutex);
    kept.push_back(made);
    return std::make_unique<TorchOptimizer>(*made, model);
  };
  std::vector<SmallTraining::Result> results;
  for (const auto& [name, ranks] : std::vector<std::pair<std::string, int>>{{"ddp", 1}, {strategy, 3}}) {
    SmallTraining training(name, ranks);
    training.steps = 10;
    training.lr = kind == "groups" ? 0.01 : 1;  // torch::optim's have rates of their own: a factor
    training.make = make;
    training.before_step = [](auto&, auto&, auto) {};
    results.push_back(training.run());
    REQUIRE(joined(results.back().errors) == "");
  }
  // 16 samples are cut into three times five: another batch, so the comparison is with ddp on three ranks where samples
  // matter.
  SmallTraining ddp("ddp", 3);
  ddp.steps = 10;
  ddp.lr = kind == "groups" ? 0.01 : 1;
  ddp.make = make;
  const auto replicated = ddp.run();
  CHECK(largest_difference(replicated.state, results[1].state) < 2e-5);
  CHECK(results[1].state.size() == results[0].state.size());
}

TEST_CASE("[F06] the gradient's norm has the same bits on all ranks and clipping gives what one rank gets",
          "[sharded]") {
  const auto strategy = GENERATE(from_range(kStrategies));
  INFO(strategy);
  const auto run = [](const std::string& name, int ranks) {
    SmallTraining training(name, ranks);
    training.steps = 10;
    training.jobs.options.training.clip_norm = 0.05;
    training.jobs.options.strategy.fsdp_shard_size = 2;
    return training.run();
  };
  const auto one = run("ddp", 1), many = run(strategy, 4);
  REQUIRE(joined(many.errors) == "");
  std::set<double> distinct(many.norms.begin(), many.norms.end());
  CHECK(many.norms.size() == 40);
  CHECK(distinct.size() == 10);
  CHECK(*distinct.begin() > 0.05);
  CHECK(largest_difference(model_part(one.state), model_part(many.state)) < 1e-6);
}

TEST_CASE("[F06] micro-batches add up, reduced once or each", "[sharded]") {
  const auto strategy = GENERATE(from_range(kStrategies));
  const bool each = GENERATE(false, true);
  INFO(strategy << (each ? ", each" : ", once"));
  SmallTraining training(strategy, 2);
  training.steps = 10;
  training.jobs.options.training.grad_accum_steps = 4;
  training.jobs.options.strategy.fsdp_sync_micro_batches = each;
  const auto divided = training.run();
  REQUIRE(joined(divided.errors) == "");
  SmallTraining whole("ddp", 1);
  whole.steps = 10;
  CHECK(largest_difference(model_part(whole.run().state), model_part(divided.state)) < 1e-6);
}

TEST_CASE("[F06] a resumed run has the bits of the undisturbed one", "[sharded]") {
  const auto strategy = GENERATE(from_range(kStrategies));
  INFO(strategy);
  const auto run = [&](std::int64_t first, std::int64_t steps, const NamedTensors& saved) {
    SmallTraining training(strategy, 4);
    training.first_step = first;
    training.steps = steps;
    training.optimizer.optimizer = "adamw";
    training.lr = 0.01;
    training.jobs.options.strategy.fsdp_shard_size = 2;
    training.jobs.options.strategy.static_graph = true;
    training.saved = saved;
    auto result = training.run();
    REQUIRE(joined(result.errors) == "");
    return result;
  };
  const auto undisturbed = run(0, 20, {}), first = run(0, 10, {}), second = run(10, 10, first.state);
  CHECK(largest_difference(undisturbed.state, second.state) == 0);
  CHECK(second.losses.back() == undisturbed.losses.back());
}

TEST_CASE("[F06] what one strategy and number of ranks saved, another loads", "[sharded]") {
  SmallTraining writer("zero2", 3);
  writer.steps = 5;
  const auto written = writer.run();
  REQUIRE(joined(written.errors) == "");
  SmallTraining reader("fsdp full_shard", 2);
  reader.steps = 0;
  reader.saved = written.state;
  const auto read = reader.run();
  REQUIRE(joined(read.errors) == "");
  CHECK(largest_difference(written.state, read.state) == 0);

  auto other = written.state;
  for (auto& [name, tensor] : other) {
    if (name == "model.first.weight") tensor = at::zeros({2, 2});
  }
  SmallTraining refusing("zero1", 2);
  refusing.saved = other;
  for (const auto& error : refusing.run().errors) CHECK_THAT(error, Catch::Contains("first.weight"));
}

TEST_CASE("[F06] [D09] no rank waits for a gradient's memory in a backward with collectives", "[sharded]") {
  register_shipped_strategies();
  testing::Cluster cluster;
  cluster.world_size = 2;
  cluster.options.strategy.strategy = "zero2";
  cluster.options.strategy.bucket_cap_mb = cluster.options.strategy.first_bucket_mb = 1e-6;  // a unit a parameter
  std::atomic<int> vain = 0;
  const auto errors = cluster.run([&](RankSystem& rank) {
    auto& compute = rank.compute();
    auto model = testing::make_seeded<UnevenNormImpl>(1);
    convert_sync_batchnorm(*model, compute.services().program_communicator);
    compute.distribute(model);
    const auto optimizer = make_optimizer(OptimizerOptions{}, one_group(*model));
    for (std::int64_t step = 0; step < 3; ++step) {
      const auto [input, target] = testing::small_batch(step);
      compute.backward(torch::cross_entropy_loss(model->forward(input, compute.rank() == 0), target), 1);
      compute.step(*optimizer, 0.1);
    }
    if (dynamic_cast<ShardedStrategy&>(compute.strategy()).gradients().waited_in_vain()) ++vain;
  });
  CHECK(joined(errors) == "");
  CHECK(vain == 0);
}
