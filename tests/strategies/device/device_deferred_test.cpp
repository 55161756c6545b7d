// Models that get their values unit after unit, on a device, without one: see device_training_test.cpp.
#include "actors/block/block.hpp"
#include "tensor_io/layers/deferred_init.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

#include <c10/core/AutogradState.h>

using namespace troupe;
using namespace troupe::testing;
using troupe::test::FakeDevice;

namespace {

struct WideLayerImpl : torch::nn::Module {
  at::Tensor up = register_parameter("up", torch::empty({8, 3000}).normal_(0, 0.1));  // 96 KB
  at::Tensor down = register_parameter("down", torch::empty({3000, 8}).normal_(0, 0.01));
  at::Tensor bias = register_parameter("bias", torch::zeros({8}));
  at::Tensor forward(const at::Tensor& x) { return x + torch::tanh(x.matmul(up)).matmul(down) + bias; }
};
TROUPE_BLOCK(WideLayer);

struct WideStackImpl : torch::nn::Module {
  std::vector<WideLayer> layers;
  at::Tensor scale = register_buffer("scale", torch::empty({8, 3000}).fill_(0.5));
  WideStackImpl() {
    for (int i = 0; i < 3; ++i) layers.emplace_back(register_module("layer" + std::to_string(i), WideLayer()));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return (x * scale.narrow(1, 0, 8).diagonal()).narrow(1, 0, 3);
  }
};

}  // namespace

TEST_CASE("[L03] [F08] a model without memory gets its values on a device, as one that was built at once") {
  const std::string strategy = GENERATE("fsdp full_shard", "fsdp hybrid_shard", "zero1", "zero2", "ddp", "local_sgd");
  const int ranks = GENERATE(1, 2);
  const bool offload = GENERATE(false, true);
  INFO(strategy << " on " << ranks << (offload ? ", offload" : ""));
  const auto run = [&](bool deferred) {
    FakeDevice::reset();
    SmallTraining training(strategy, ranks);
    training.steps = 3;
    training.jobs.options.device = FakeDevice::device();
    training.jobs.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
    training.jobs.options.strategy.fsdp_shard_size = 1;
    training.jobs.options.strategy.fsdp_cpu_offload = offload;
    training.model = [=]() -> std::shared_ptr<torch::nn::Module> {
      c10::AutogradState::get_tls_state().set_multithreading_enabled(false);  // as in device_sharded_test.cpp
      const auto build = [] { return make_seeded<WideStackImpl>(3); };
      auto model = deferred ? deferred_init(build) : build();
      move_to(*model, FakeDevice::device());
      const auto& weight = model->layers[1]->up;
      if (is_deferred(weight) != deferred || weight.device().is_cpu() != deferred)
        throw std::runtime_error("deferred, or not");
      if (model->layers[1]->bias.device().is_cpu() || model->scale.device().is_cpu())
        throw std::runtime_error("what has memory stays where it was");
      return model;
    };
    training.forward = [](torch::nn::Module& model, const at::Tensor& input) {
      return dynamic_cast<WideStackImpl&>(model).forward(input.to(FakeDevice::device()));
    };
    auto result = training.run();
    REQUIRE(joined(result.errors) == "");
    return result;
  };
  const auto built = run(false), later = run(true);
  CHECK(largest_difference(built.losses, later.losses) == 0);
  CHECK(largest_difference(built.state, later.state) == 0);
}
