// Activation checkpointing and loss scaling on every strategy that holds parameters or state in parts.
#include <torch/torch.h>

#include "actors/block/activation_checkpointing.hpp"
#include "actors/block/block.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tests/catch.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using testing::joined;
using testing::largest_difference;
using testing::make_seeded;
using testing::SmallTraining;

namespace {

struct InnerImpl : torch::nn::Module {
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(12, 12));
  nn::Dropout dropout = register_module("dropout", nn::Dropout(0.2));
  at::Tensor forward(const at::Tensor& x) { return dropout(torch::tanh(fc(x))); }
};
TROUPE_BLOCK(Inner);

struct LayerImpl : torch::nn::Module {
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})));
  Inner inner = register_module("inner", Inner());
  torch::nn::Linear down = register_module("down", torch::nn::Linear(12, 12));
  at::Tensor forward(const at::Tensor& x) { return x + down(inner(norm(x))); }
};
TROUPE_BLOCK(Layer);

struct StackImpl : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(8, 12));
  std::vector<Layer> layers;
  torch::nn::Linear out = register_module("out", torch::nn::Linear(12, 3));
  StackImpl() {
    for (int i = 0; i < 3; ++i) layers.emplace_back(register_module("layer" + std::to_string(i), Layer()));
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = in(input);
    for (auto& layer : layers) x = layer(x);
    return out(layers[0](x));  // called twice
  }
};

SmallTraining::Result train(const std::string& strategy, const std::string& policy, bool mapped,
                            const std::string& scaler = "off") {
  SmallTraining training(strategy, 2);
  training.steps = 8;
  training.jobs.options.strategy.fsdp_mapped = mapped;
  training.jobs.options.training.loss_scaler = scaler;
  training.jobs.options.training.clip_norm = 0.5;
  training.jobs.options.training.grad_accum_steps = 2;
  training.model = [=]() -> std::shared_ptr<torch::nn::Module> {
    auto model = make_seeded<StackImpl>(5);
    checkpoint_activations(model, policy);
    return model;
  };
  training.forward = [](torch::nn::Module& model, const at::Tensor& input) {
    return dynamic_cast<StackImpl&>(model).forward(input);
  };
  return training.run();
}

}  // namespace

TEST_CASE("[F07] sharded training comes to the same bits with and without activation checkpointing") {
  const auto strategy = GENERATE(as<std::string>{}, "fsdp full_shard", "fsdp shard_grad_op", "zero2");
  const bool mapped = GENERATE(false, true);
  const auto policy = GENERATE(as<std::string>{}, "block", "every:2", "type:Inner");
  INFO(strategy << (mapped ? ", mapped, " : ", ") << policy);
  const auto expected = train(strategy, "none", mapped), actual = train(strategy, policy, mapped);
  REQUIRE(joined(expected.errors) == "");
  REQUIRE(joined(actual.errors) == "");
  CHECK(largest_difference(actual.losses, expected.losses) == 0);
  CHECK(largest_difference(actual.state, expected.state) == 0);
}

TEST_CASE("[T01] a loss scale that is a power of two changes no bit of a training that does not overflow") {
  const auto strategy = GENERATE(as<std::string>{}, "ddp", "zero1", "zero2", "fsdp full_shard");
  INFO(strategy);
  const auto expected = train(strategy, "none", true), actual = train(strategy, "none", true, "on");
  REQUIRE(joined(expected.errors) == "");
  REQUIRE(joined(actual.errors) == "");
  CHECK(largest_difference(actual.losses, expected.losses) == 0);
  CHECK(largest_difference(actual.state, expected.state) == 0);
}
