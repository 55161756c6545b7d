// Activation checkpointing on a device, without one: see device_training_test.cpp.
#include <c10/core/AutogradState.h>

#include <atomic>
#include <thread>

#include "actors/block/activation_checkpointing.hpp"
#include "actors/block/block.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using namespace troupe::testing;
using troupe::test::FakeDevice;

namespace {

enum class Random { none, ours, stock };

std::atomic<int> layer_forwards{0}, elsewhere{0};  // calls; on another thread than the model was made on

struct ReplayedLayerImpl : torch::nn::Module {
  explicit ReplayedLayerImpl(Random random) : random_(random), made_on_(std::this_thread::get_id()) {}
  torch::nn::Linear up = register_module("up", torch::nn::Linear(12, 24));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(24));
  troupe::nn::Dropout ours = register_module("ours", troupe::nn::Dropout(0.25));
  torch::nn::Dropout stock = register_module("stock", torch::nn::Dropout(0.25));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(24, 12));
  at::Tensor seen = register_buffer("seen", torch::zeros({2, 24}));       // changed, and what comes out depends on it
  at::Tensor mask = register_buffer("mask", torch::ones({1, 24}) * 0.5);  // never changed
  at::Tensor forward(const at::Tensor& x) {
    ++layer_forwards;
    if (std::this_thread::get_id() != made_on_) ++elsewhere;
    auto y = torch::tanh(norm(up(x))).to(at::kFloat) * mask;
    {
      at::NoGradGuard no_grad;
      seen.add_(y.detach().mean(0, true));
    }
    y = y + 0.1 * seen.select(0, 0);
    if (random_ == Random::ours) y = ours(y);
    if (random_ == Random::stock) y = stock(y);
    return x + down(y).to(x.scalar_type());
  }

 private:
  Random random_;
  std::thread::id made_on_;
};
TROUPE_BLOCK(ReplayedLayer);

struct ReplayedImpl : torch::nn::Module {
  explicit ReplayedImpl(Random random) {
    for (int i = 0; i < 3; ++i)
      layers.emplace_back(register_module("layer" + std::to_string(i), ReplayedLayer(random)));
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(8, 12));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(12, 3));
  std::vector<ReplayedLayer> layers;
  at::Tensor forward(const at::Tensor& input) {
    auto x = in(input);
    for (auto& layer : layers) x = layer(x);
    return out(layers[0](x));  // called twice
  }
};

struct Way {
  std::string strategy = "ddp", policy = "none";
  int ranks = 1;
  Random random = Random::none;
  bool autocast = false;
};

constexpr std::int64_t kSteps = 6;

SmallTraining::Result train_replayed(bool on_device, const Way& way,
                                     const std::function<void(SmallTraining&)>& change = {}) {
  FakeDevice::reset();
  SmallTraining training(way.strategy, way.ranks);
  training.steps = kSteps;
  training.optimizer.optimizer = "adamw";
  training.jobs.options.strategy.fsdp_mapped = false;
  const auto device = on_device ? FakeDevice::device() : c10::Device(at::kCPU);
  training.jobs.options.device = device;
  if (on_device) training.jobs.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
  training.model = [way, on_device]() -> std::shared_ptr<torch::nn::Module> {
    // LibTorch has one thread for a device's backwards, where ranks that share one would wait for each other.
    if (on_device && way.ranks > 1) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    auto model = make_seeded<ReplayedImpl>(5, way.random);
    checkpoint_activations(model, way.policy);
    if (on_device) model->to(FakeDevice::device());
    return model;
  };
  training.forward = [device, way](torch::nn::Module& model, const at::Tensor& input) {
    const AutocastGuard guard(way.autocast, at::kBFloat16, device.type());
    return dynamic_cast<ReplayedImpl&>(model).forward(input.to(device));
  };
  training.before_step = [](RankSystem& system, torch::nn::Module&, std::int64_t) { system.compute().seed_forward(); };
  if (change) change(training);
  layer_forwards = elsewhere = 0;
  auto result = training.run();
  INFO(way.strategy << ", " << way.policy << ", " << way.ranks << " ranks" << (on_device ? ", on a device" : ""));
  REQUIRE(joined(result.errors) == "");
  return result;
}

void check_same(const SmallTraining::Result& a, const SmallTraining::Result& b) {
  CHECK((a.losses.size() == kSteps));
  CHECK(largest_difference(a.losses, b.losses) == 0);
  CHECK(largest_difference(a.state, b.state) == 0);
}

}  // namespace

TEST_CASE(
    "[F07] [L03] on a device checkpointed training has the bits of the CPU's, and of what keeps its activations") {
  Way way;
  way.strategy = GENERATE(as<std::string>{}, "ddp", "fsdp full_shard", "fsdp shard_grad_op", "zero2");
  way.ranks = GENERATE(1, 2);
  way.random = Random::ours;
  const auto kept = train_replayed(true, way);
  CHECK((layer_forwards == kSteps * 4 * way.ranks));
  way.policy = GENERATE(as<std::string>{}, "block", "every:2");
  const auto device = train_replayed(true, way);
  CHECK(layer_forwards > kSteps * 4 * way.ranks);                       // it did compute again
  if (way.ranks == 1) CHECK(elsewhere == layer_forwards - kSteps * 4);  // on the device's thread of autograd
  check_same(device, kept);
  check_same(device, train_replayed(false, way));
}

TEST_CASE("[F07] on a device the second forward draws from the device's generator what the first one drew") {
  Way way;
  way.strategy = GENERATE(as<std::string>{}, "ddp", "fsdp full_shard");
  way.random = Random::stock;
  const auto kept = train_replayed(true, way);
  way.policy = "block";
  const auto replayed = train_replayed(true, way);
  check_same(replayed, kept);
  check_same(replayed, train_replayed(false, way));  // seeded alike, the test's device draws as the CPU does
  way.random = Random::none;
  CHECK(largest_difference(replayed.losses, train_replayed(true, way).losses) > 0);
}

TEST_CASE("[F07] on a device the second forward runs under the autocast of the first one") {
  Way way;
  way.autocast = true;
  const auto kept = train_replayed(true, way);
  way.policy = "block";
  const auto replayed = train_replayed(true, way);
  check_same(replayed, kept);
  way.autocast = false;
  CHECK(largest_difference(replayed.losses, train_replayed(true, way).losses) > 1e-4);
}

TEST_CASE("[F07] [L03] on a device a second forward waits for nothing on the host, and reads no value") {
  Way way;
  way.strategy = GENERATE(as<std::string>{}, "ddp", "fsdp full_shard");
  way.policy = "block";
  way.random = Random::stock;
  std::int64_t before = 0;
  int items = 0;
  train_replayed(true, way, [&](SmallTraining& training) {
    training.jobs.options.training.verify_every = training.jobs.options.training.snapshot_every = 0;
    training.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t step) {
      system.compute().seed_forward();
      if (step != 2) return;
      before = host_waits();
      items = FakeDevice::items();
    };
    training.at_end = [&](RankSystem&, Optimizer&) {
      CHECK((host_waits() - before == kSteps - 2));  // for the vote
      CHECK((FakeDevice::items() == items));
    };
  });
}

TEST_CASE(
    "[F07] [L03] sharded on a device, a second forward touches no memory before those that used it last are past it") {
  Way way;
  way.strategy = GENERATE(as<std::string>{}, "fsdp full_shard", "zero2");
  way.policy = "block";
  way.random = Random::stock;
  const bool offload = GENERATE(false, true);
  train_replayed(true, way, [&](SmallTraining& training) {
    training.jobs.options.strategy.fsdp_cpu_offload = offload;
    training.jobs.options.training.snapshot_every = 0;
    training.before_step = [](RankSystem& system, torch::nn::Module&, std::int64_t step) {
      system.compute().seed_forward();
      if (step == 1) FakeDevice::look_for_races();
    };
    training.at_end = [](RankSystem&, Optimizer&) { CHECK((FakeDevice::races() == std::vector<std::string>{})); };
  });
}

TEST_CASE("[F07] on a device what a block does not change is not kept for its second forward") {
  FakeDevice::reset();
  const auto held = [](const std::string& policy) {
    ReplayedLayer layer(Random::none);
    layer->register_buffer("table", torch::ones({1000, 24}));
    const auto model = std::make_shared<torch::nn::Module>();
    model->register_module("layer", layer.ptr());
    checkpoint_activations(model, policy);
    model->to(FakeDevice::device());
    const auto input = torch::ones({4, 12}).to(FakeDevice::device()).requires_grad_();
    const auto before = FakeDevice::bytes();
    const auto output = layer->forward(input);
    return FakeDevice::bytes() - before;
  };
  CHECK(held("block") < 20'000);  // the table has 96,000 bytes
}
