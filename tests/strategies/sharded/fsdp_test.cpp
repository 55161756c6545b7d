// fsdp on models of blocks: units that come and go (ranks without common memory), and the dtypes of a mixed precision.
#include <torch/torch.h>

#include <array>

#include "actors/block/activation_checkpointing.hpp"
#include "actors/block/block.hpp"
#include "actors/strategy/evaluation.hpp"
#include "strategies/sharded/sharded_strategy.hpp"
#include "tensor_io/layers/deferred_init.hpp"
#include "tests/catch.hpp"
#include "tests/share.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using testing::joined;
using testing::largest_difference;
using testing::make_seeded;
using testing::model_part;
using testing::SmallTraining;

namespace {

struct LayerImpl : torch::nn::Module {
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})));
  torch::nn::Linear up, down;
  explicit LayerImpl(std::int64_t hidden = 31)
      : up(register_module("up", torch::nn::Linear(12, hidden))),
        down(register_module("down", torch::nn::Linear(hidden, 12))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(norm(x)))); }
};
TROUPE_BLOCK(Layer);

struct StackImpl : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(8, 12));
  std::vector<Layer> layers;
  torch::nn::Linear out = register_module("out", torch::nn::Linear(12, 3));
  std::vector<int> order;  // of the layers' calls
  explicit StackImpl(int depth = 4, std::int64_t hidden = 31) {
    for (int i = 0; i < depth; ++i) {
      layers.emplace_back(register_module("layer" + std::to_string(i), Layer(hidden)));
      order.push_back(i);
    }
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = in(input);
    for (const int i : order) x = layers[static_cast<std::size_t>(i)](x);
    return out(x);
  }
};
TROUPE_BLOCK(Stack);
using StackBlock = Block<StackImpl>;

at::Tensor call(torch::nn::Module& model, const at::Tensor& input) {
  return dynamic_cast<StackImpl&>(model).forward(input);
}
at::Tensor call_block(torch::nn::Module& model, const at::Tensor& input) {
  return dynamic_cast<StackBlock&>(model).forward(input);
}

/// The root is a block too, or a plain module, whose own parameters always stay.
void use_stack(SmallTraining& training, bool root_is_block, std::function<void(StackImpl&)> prepare = {},
               at::ScalarType dtype = at::kFloat) {
  training.model = [=]() -> std::shared_ptr<torch::nn::Module> {
    auto model = root_is_block ? std::static_pointer_cast<StackImpl>(make_seeded<StackBlock>(3, 4))
                               : make_seeded<StackImpl>(3, 4);
    if (prepare) prepare(*model);
    model->to(dtype);
    return model;
  };
  training.forward = [=](torch::nn::Module& model, const at::Tensor& input) {
    return (root_is_block ? call_block : call)(model, input.to(dtype));
  };
}

SmallTraining::Result alone(std::int64_t steps, std::function<void(StackImpl&)> prepare = {},
                            const std::string& optimizer = "sgd", at::ScalarType dtype = at::kFloat) {
  SmallTraining training("ddp", 1);
  training.steps = steps;
  training.optimizer.optimizer = optimizer;
  if (optimizer != "sgd") training.lr = 0.01;
  use_stack(training, false, std::move(prepare), dtype);
  return training.run();
}

const UnitGathers* gathers_of(RankSystem& system) {
  return dynamic_cast<ShardedStrategy&>(system.compute().strategy()).gathers();
}

}  // namespace

TEST_CASE("[D05] gradients that a program leaves behind between two steps count in none") {
  const std::string strategy = GENERATE("ddp", "zero1", "zero2", "fsdp full_shard");
  const auto run = [&](bool leaves) {
    SmallTraining training(strategy, 2);
    training.steps = 4;
    training.jobs.options.training.grad_accum_steps = 2;
    training.before_step = [leaves](RankSystem&, torch::nn::Module& model, std::int64_t) {
      if (!leaves) return;
      for (auto& parameter : model.parameters()) parameter.mutable_grad() = at::ones_like(parameter);
    };
    auto result = training.run();
    CHECK(testing::joined(result.errors) == "");
    return result.state;
  };
  CHECK(testing::largest_difference(run(true), run(false)) == 0);
}

TEST_CASE("[F01] units that are gathered for their calls train as one rank does", "[fsdp]") {
  const std::string mode = GENERATE("full_shard", "shard_grad_op", "hybrid_shard");
  const int world_size = GENERATE(2, 4);
  const bool root_is_block = GENERATE(true, false);
  const bool mapped = GENERATE(false, true);
  INFO(mode << " on " << world_size << (root_is_block ? ", root is a block" : "") << (mapped ? ", mapped" : ""));
  SmallTraining training("fsdp " + mode, world_size);
  training.jobs.options.strategy.fsdp_mapped = mapped;
  training.jobs.options.strategy.fsdp_shard_size = 2;
  use_stack(training, root_is_block);
  const auto many = training.run();
  REQUIRE(joined(many.errors) == "");
  const auto one = alone(50);
  CHECK(largest_difference(one.losses, many.losses) < 1e-4);
  CHECK(largest_difference(model_part(one.state), model_part(many.state)) < 1e-5);
}

TEST_CASE("[F01] what gathered units export is one rank's to 1e-6 where rounding is out of the way", "[fsdp]") {
  const std::string mode = GENERATE("full_shard", "shard_grad_op", "hybrid_shard", "no_shard");
  const std::string optimizer = GENERATE("sgd", "adamw");
  const int world_size = GENERATE(2, 4);
  INFO(mode << " on " << world_size << " with " << optimizer);
  SmallTraining training("fsdp " + mode, world_size);
  training.jobs.options.strategy.fsdp_mapped = false;
  training.jobs.options.strategy.fsdp_shard_size = 2;
  training.optimizer.optimizer = optimizer;
  if (optimizer != "sgd") training.lr = 0.01;
  use_stack(training, true, {}, at::kDouble);
  const auto many = training.run();
  REQUIRE(joined(many.errors) == "");
  const auto one = alone(50, {}, optimizer, at::kDouble);
  CHECK(largest_difference(one.losses, many.losses) < 1e-6);  // told in f32
  CHECK(largest_difference(model_part(one.state), model_part(many.state)) < 1e-9);
}

TEST_CASE("[F04] in the steady state units are gathered ahead of their calls, as far as the limits allow", "[fsdp]") {
  const std::int64_t prefetch = GENERATE(0, 1, 3);
  const std::string mode = GENERATE("full_shard", "shard_grad_op");
  INFO(mode << ", " << prefetch << " ahead");
  std::array<UnitGathers::Counts, 2> middle{}, end{};
  std::array<std::vector<std::int32_t>, 2> plans;
  SmallTraining training("fsdp " + mode, 2);
  training.jobs.options.strategy.fsdp_mapped = false;
  training.jobs.options.strategy.fsdp_prefetch = prefetch;
  training.jobs.options.strategy.static_graph = true;
  use_stack(training, true);
  training.steps = 10;
  training.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t step) {
    if (step == 5) middle[static_cast<std::size_t>(system.compute().rank())] = gathers_of(system)->counts();
  };
  training.at_end = [&](RankSystem& system, Optimizer&) {
    const auto r = static_cast<std::size_t>(system.compute().rank());
    end[r] = gathers_of(system)->counts();
    plans[r] = gathers_of(system)->plan();
  };
  REQUIRE(joined(training.run().errors) == "");
  CHECK(plans[0] == plans[1]);
  // root and four layers in forward; in backward the layers again, where they went
  CHECK(plans[0].size() == (mode == "full_shard" ? 9 : 5));
  for (const std::size_t r : {0, 1}) {
    const auto per_step = static_cast<std::int64_t>(plans[r].size());
    CHECK(end[r].gathers - middle[r].gathers == 5 * per_step);
    CHECK(end[r].rounds - middle[r].rounds == 5);  // one to end each step
    CHECK(end[r].ahead + end[r].waited - middle[r].ahead - middle[r].waited == 5 * per_step);
    if (prefetch == 0) CHECK(end[r].ahead == 0);
  }
}

TEST_CASE("[F04] full_shard keeps few units in memory, and none between steps", "[fsdp]") {
  std::array<std::int64_t, 2> most{}, unit{};
  std::array<bool, 2> gone{};
  SmallTraining training("fsdp full_shard", 2);
  training.jobs.options.strategy.fsdp_mapped = false;
  use_stack(training, true);
  training.steps = 4;
  training.at_end = [&](RankSystem& system, Optimizer&) {
    const auto r = static_cast<std::size_t>(system.compute().rank());
    auto& parameters = dynamic_cast<ShardedStrategy&>(system.compute().strategy()).parameters();
    most[r] = gathers_of(system)->counts().most_bytes;
    gone[r] = true;
    for (std::size_t f = 0; f < parameters.flats().size(); ++f) {
      unit[r] = std::max(unit[r], parameters.flats()[f].plan->numel * 4);
      gone[r] = gone[r] && !parameters.is_here(f);
    }
  };
  REQUIRE(joined(training.run().errors) == "");
  for (const std::size_t r : {0, 1}) {
    CHECK(gone[r]);
    CHECK(most[r] <= 4 * unit[r]);  // the root, the layer that runs and the next two
  }
}

TEST_CASE("[F09] units unused, called twice or in another order on one rank: no deadlock, and the gradients of ddp",
          "[fsdp]") {
  const bool mapped = GENERATE(false, true);
  const std::string backend = GENERATE("shm", "gloo");
  const bool each =
      GENERATE(false, true);  // a step's micro-batches reduced each, which waits for the others between them
  if (mapped && backend == "gloo") return;
  const auto what = (mapped ? "mapped " : "gathered ") + backend + (each ? ", each micro-batch" : "");
  if (!testing::in_share(0.4, what)) return;
  INFO(what);
  const auto order_of = [](int rank, std::int64_t step) -> std::vector<int> {
    if (rank == 0) return step == 4 ? std::vector<int>{} : std::vector<int>{0, 1, 2, 3};
    switch (step) {
      case 0: return {3, 1, 0, 2};  // another order in the first step
      case 1: return {0, 1, 2, 3};
      case 2: return {0, 0, 1, 3, 3};  // twice, and one not at all, where a plan says otherwise
      case 3: return {2};
      case 4: return {3, 2, 1, 0};   // the other rank uses none
      default: return {0, 2, 1, 3};  // another order for good
    }
  };
  const auto run = [&](const std::string& strategy) {
    SmallTraining training(strategy, 2);
    training.jobs.options.strategy.fsdp_mapped = mapped;
    training.jobs.options.communicator.backend = backend;
    training.jobs.options.strategy.fsdp_sync_micro_batches = each;
    if (each) training.jobs.options.training.grad_accum_steps = 2;
    use_stack(training, true);
    training.steps = 9;
    training.lr = 0.05;
    training.before_step = [&](RankSystem& system, torch::nn::Module& model, std::int64_t step) {
      dynamic_cast<StackImpl&>(model).order = order_of(system.compute().rank(), step);
    };
    auto result = training.run();
    REQUIRE(joined(result.errors) == "");
    return result;
  };
  CHECK(largest_difference(run("ddp").state, run("fsdp full_shard").state) < 1e-6);
}

TEST_CASE("[F09] shared and frozen parameters are sharded too, frozen ones stay as they are", "[fsdp]") {
  const bool mapped = GENERATE(false, true);
  INFO((mapped ? "mapped" : "gathered"));
  const auto prepare = [](StackImpl& model) {
    model.layers[2]->up->weight.requires_grad_(false);
    for (auto& parameter : model.layers[1]->parameters()) parameter.requires_grad_(false);
    auto& down = *model.layers[3]->down;
    down.weight =
        down.register_parameter("tied", model.layers[0]->down->weight);  // beside its own, which is not used any more
  };
  const auto one = alone(20, prepare);
  SmallTraining training("fsdp full_shard", 2);
  training.jobs.options.strategy.fsdp_mapped = mapped;
  use_stack(training, true, prepare);
  training.steps = 20;
  const auto many = training.run();
  REQUIRE(joined(many.errors) == "");
  CHECK(largest_difference(one.losses, many.losses) < 1e-4);
  CHECK(many.at("model.layer3.down.tied").equal(many.at("model.layer0.down.weight")));
  CHECK(model_part(one.state).size() == model_part(many.state).size());
  const auto fresh = make_seeded<StackImpl>(3, 4);
  CHECK(many.at("model.layer1.up.weight").equal(fresh->layers[1]->up->weight));
  CHECK(many.at("model.layer2.up.weight").equal(fresh->layers[2]->up->weight));
  CHECK_FALSE(many.at("model.layer0.down.weight").equal(fresh->layers[0]->down->weight));
}

namespace {

/// What two ranks compute in bf16 with an f32 master, written down once more: SGD with momentum 0.9 and weight decay
/// 1e-4.
std::vector<double> bf16_by_hand(std::int64_t steps, double lr) {
  const auto model = make_seeded<StackImpl>(3, 4);
  std::vector<at::Tensor> masters, momenta;
  for (const auto& parameter : model->parameters()) {
    masters.push_back(parameter.detach().clone());
    momenta.emplace_back();
  }
  std::vector<double> losses;
  for (std::int64_t s = 0; s < steps; ++s) {
    const auto parameters = model->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(masters[i].to(at::kBFloat16));
    std::vector<at::Tensor> gradients(parameters.size());
    double sum = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const auto [input, target] = testing::small_batch(s);
      const auto output = model->forward(input.narrow(0, rank * 8, 8).to(at::kBFloat16));
      const auto loss = torch::nn::functional::cross_entropy(output.to(at::kFloat), target.narrow(0, rank * 8, 8));
      for (const auto& parameter : parameters) parameter.mutable_grad() = at::Tensor();
      loss.backward();
      sum += loss.item<double>();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto gradient = parameters[i].grad().to(at::kFloat) / 2;
        gradients[i] = gradients[i].defined() ? gradients[i] + gradient : gradient;
      }
    }
    losses.push_back(sum / 2);
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < masters.size(); ++i) {
      const auto gradient = gradients[i] + 1e-4 * masters[i];
      momenta[i] = momenta[i].defined() ? 0.9 * momenta[i] + gradient : gradient;
      masters[i] -= lr * momenta[i];
    }
  }
  return losses;
}

}  // namespace

TEST_CASE("[F03] forward and backward run in bf16, the master and the optimizer in f32", "[fsdp]") {
  const std::string reduce = GENERATE("float32", "bfloat16");
  std::vector<SmallTraining::Result> results;
  std::array<bool, 2> narrow{};
  for (const bool mapped : {true, false}) {
    SmallTraining training("fsdp full_shard", 2);
    training.jobs.options.strategy.fsdp_mapped = mapped;
    training.jobs.options.strategy.param_dtype = "bfloat16";
    training.jobs.options.strategy.reduce_dtype = reduce;
    use_stack(training, true);
    training.steps = 10;
    training.lr = 0.02;
    training.before_step = [&](RankSystem& system, torch::nn::Module& model, std::int64_t) {
      narrow[static_cast<std::size_t>(system.compute().rank())] =
          dynamic_cast<StackImpl&>(model).in->weight.scalar_type() == at::kBFloat16;
    };
    results.push_back(training.run());
    REQUIRE(joined(results.back().errors) == "");
    CHECK((narrow[0] && narrow[1]));
  }
  CHECK(results[0].at("model.in.weight").scalar_type() == at::kFloat);
  CHECK(largest_difference(results[0].state, results[1].state) == 0);  // mapped or gathered: the same bits
  const auto expected = bf16_by_hand(10, 0.02);
  CHECK(largest_difference(expected, results[0].losses) < (reduce == "float32" ? 1e-3 : 1e-2));
  SmallTraining full("ddp", 1);
  use_stack(full, false);
  full.steps = 10;
  full.lr = 0.02;
  const auto exact = full.run();
  CHECK(largest_difference(exact.losses, results[0].losses) < 0.05);
  CHECK(largest_difference(exact.losses, results[0].losses) > 1e-4);
}

TEST_CASE("[F07] activations computed again in backward change no bit where units come and go", "[fsdp]") {
  const bool mapped = GENERATE(false, true);
  const auto run = [&](const std::string& policy) {
    SmallTraining training("fsdp full_shard", 2);
    training.jobs.options.strategy.fsdp_mapped = mapped;
    use_stack(training, true, [=](StackImpl& model) {
      if (checkpoint_activations(model.shared_from_this(), policy) != (policy == "none" ? 0U : 4U))
        throw std::runtime_error("other blocks");
    });
    training.steps = 6;
    auto result = training.run();
    REQUIRE(joined(result.errors) == "");
    return result;
  };
  CHECK(largest_difference(run("none").state, run("block").state) == 0);
}

TEST_CASE("[F08] units that get their values one after the other have those of a model that was built at once",
          "[fsdp]") {
  const std::string strategy = GENERATE("fsdp full_shard", "fsdp hybrid_shard", "zero2", "ddp");
  const bool mapped = GENERATE(false, true);
  INFO(strategy << (mapped ? " mapped" : ""));
  const auto run = [&](bool deferred) {
    SmallTraining training(strategy, 2);
    training.jobs.options.strategy.fsdp_shard_size = 1;
    training.jobs.options.strategy.fsdp_mapped = mapped;
    training.steps = 2;
    training.model = [=]() -> std::shared_ptr<torch::nn::Module> {
      const auto build = [] { return make_seeded<StackBlock>(3, 2, 3000); };
      auto model = deferred ? deferred_init(build) : build();
      if (is_deferred(model->layers[0]->up->weight) != deferred) throw std::runtime_error("deferred, or not");
      checkpoint_activations(model, "block");
      return model;
    };
    training.forward = call_block;
    auto result = training.run();
    REQUIRE(joined(result.errors) == "");
    return result;
  };
  CHECK(largest_difference(run(false).state, run(true).state) == 0);
}

TEST_CASE("[F01] ranks evaluate unequally often between steps", "[fsdp]") {
  std::array<at::Tensor, 2> seen;
  SmallTraining training("fsdp full_shard", 2);
  training.jobs.options.strategy.fsdp_mapped = false;
  use_stack(training, true);
  training.steps = 6;
  training.before_step = [&](RankSystem& system, torch::nn::Module& model, std::int64_t step) {
    if (step % 2 == 0) return;
    torch::NoGradGuard no_grad;
    const int r = system.compute().rank();
    auto& strategy = system.compute().strategy().evaluation();
    strategy.begin_evaluation();
    for (int i = 0; i < 1 + 2 * r; ++i) seen[static_cast<std::size_t>(r)] = call_block(model, at::ones({2, 8})).clone();
    strategy.end_evaluation();
  };
  const auto result = training.run();
  REQUIRE(joined(result.errors) == "");
  CHECK(seen[0].equal(seen[1]));
  CHECK(largest_difference(alone(6).losses, result.losses) < 1e-5);
}
