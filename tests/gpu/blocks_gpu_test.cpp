// Activation checkpointing and SyncBatchNorm on the device beside the CPU.
#include <thread>

#include "actors/block/activation_checkpointing.hpp"
#include "actors/block/block.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

const c10::Device kDevice(at::kCUDA, 0);

struct GpuLayerImpl : torch::nn::Module {
  explicit GpuLayerImpl(double dropped) : dropout(register_module("dropout", torch::nn::Dropout(dropped))) {}
  torch::nn::Linear up = register_module("up", torch::nn::Linear(12, 24));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(24));
  torch::nn::Dropout dropout;
  torch::nn::Linear down = register_module("down", torch::nn::Linear(24, 12));
  at::Tensor forward(const at::Tensor& x) { return x + down(dropout(torch::tanh(norm(up(x))))); }
};
TROUPE_BLOCK(GpuLayer);

struct GpuStackImpl : torch::nn::Module {
  explicit GpuStackImpl(double dropped) {
    for (int i = 0; i < 3; ++i) layers.emplace_back(register_module("layer" + std::to_string(i), GpuLayer(dropped)));
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(8, 12));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(12, 3));
  std::vector<GpuLayer> layers;
  at::Tensor forward(const at::Tensor& input) {
    auto x = in(input);
    for (auto& layer : layers) x = layer(x);
    return out(x);
  }
};

struct BlocksWay {
  std::string strategy = "ddp", policy = "none";
  int ranks = 1;
  double dropped = 0;
  bool autocast = false, synchronises = false;
};

SmallTraining::Result train_blocks(c10::Device device, const BlocksWay& way, std::int64_t* waits_per_step = nullptr) {
  SmallTraining training(way.strategy, way.ranks);
  training.steps = 30;
  training.jobs.options.strategy.fsdp_mapped = false;
  training.jobs.options.training.verify_every = training.jobs.options.training.snapshot_every = 0;
  training.jobs.options.device = device;
  training.model = [way, device]() -> std::shared_ptr<torch::nn::Module> {
    auto model = make_seeded<GpuStackImpl>(5, way.dropped);
    checkpoint_activations(model, way.policy);
    model->to(device);
    return model;
  };
  training.forward = [way, device](torch::nn::Module& model, const at::Tensor& input) {
    const AutocastGuard guard(way.autocast, at::kBFloat16, device.type());
    return dynamic_cast<GpuStackImpl&>(model).forward(input.to(device));
  };
  std::int64_t before = 0;
  training.before_step = [&](RankSystem& system, torch::nn::Module& model, std::int64_t step) {
    if (step == 0 && way.synchronises) {
      const auto& communicator = system.compute().services().program_communicator;
      convert_sync_batchnorm(model, communicator);
      if (communicator->world_size() == 1)
        count_samples_in_sync_batchnorm(model, 16);  // alone too, by the same operators
    }
    system.compute().seed_forward();
    if (step == 10) before = host_waits();
  };
  training.at_end = [&](RankSystem&, Optimizer&) {
    if (waits_per_step != nullptr) *waits_per_step = (host_waits() - before) / 20;
  };
  auto result = training.run();
  CHECK(joined(result.errors) == "");
  return result;
}

}  // namespace

TEST_CASE("[F07] [L03] gpu: checkpointed training has the bits of what keeps its activations, and the CPU's losses",
          "[gpu][sharded]") {
  troupe::test::need_devices(1);
  BlocksWay way;
  way.strategy = GENERATE(as<std::string>{}, "ddp", "fsdp full_shard");
  way.autocast = GENERATE(false, true);
  way.dropped = GENERATE(0.0, 0.25);
  INFO(way.strategy << (way.autocast ? ", autocast" : "") << ", dropout " << way.dropped);
  const auto kept = train_blocks(kDevice, way);
  way.policy = "block";
  std::int64_t waits = 0;
  const auto replayed = train_blocks(kDevice, way, &waits);
  CHECK(waits == 1);
  CHECK(largest_difference(replayed.losses, kept.losses) == 0);
  CHECK(largest_difference(replayed.state, kept.state) == 0);
  if (way.dropped == 0)
    CHECK(largest_difference(replayed.losses, train_blocks(at::kCPU, way).losses) < (way.autocast ? 5e-2 : 1e-3));
}

TEST_CASE("[D09] [L03] gpu: SyncBatchNorm trains to the CPU's losses, with one wait of the host in a step",
          "[gpu][more]") {
  troupe::test::need_devices(1);
  BlocksWay way;
  way.synchronises = true;
  std::int64_t waits = 0;
  const auto device = train_blocks(kDevice, way, &waits), cpu = train_blocks(at::kCPU, way);
  CHECK(waits == 1);
  CHECK(largest_difference(device.losses, cpu.losses) < 1e-3);
  CHECK(largest_difference(device.state, cpu.state) < 1e-2);
}

TEST_CASE("[D09] gpu: the operators of SyncBatchNorm are LibTorch's BatchNorm, in each layout and precision",
          "[gpu][more]") {
  troupe::test::need_devices(1);
  const auto dtype = GENERATE(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16);
  const bool channels_last = GENERATE(false, true), in_dtype = GENERATE(false, true);
  INFO(c10::toString(dtype) << (channels_last ? ", channels last" : "") << (in_dtype ? ", module too" : ""));
  CommunicatorOptions options;
  options.rendezvous = std::make_shared<LocalRendezvous>();
  options.device = kDevice;
  const std::shared_ptr<Communicator> communicator = make_communicator(options);
  const auto run = [&](bool synchronises) {
    nn::BatchNorm2d norm(6);
    norm->to(kDevice);
    if (in_dtype) norm->to(dtype);
    if (!in_dtype && dtype == at::kDouble) norm->to(dtype);
    if (synchronises) {
      norm->synchronise(communicator, "norm");
      norm->count_samples(12);
    }
    auto input = torch::sin(torch::arange(12 * 6 * 5 * 4, at::kDouble) * 0.7).view({12, 6, 5, 4}).to(kDevice, dtype);
    if (channels_last) input = input.contiguous(at::MemoryFormat::ChannelsLast);
    input.set_requires_grad(true);
    const auto output = norm->forward(input);
    (output.to(at::kDouble) * torch::cos(torch::arange(output.numel(), at::kDouble)).view(output.sizes()).to(kDevice))
        .sum()
        .backward();
    std::vector<at::Tensor> results = {
        output, input.grad(), norm->weight.grad(), norm->bias.grad(), norm->running_mean, norm->running_var};
    for (auto& result : results) result = result.detach().cpu().to(at::kDouble);
    return results;
  };
  const auto ours = run(true), stock = run(false);
  const double tolerance = dtype == at::kDouble ? 1e-10 : dtype == at::kFloat ? 1e-4 : 6e-2;
  for (std::size_t i = 0; i < ours.size(); ++i) CHECK((ours[i] - stock[i]).abs().max().item<double>() < tolerance);
}

TEST_CASE("[D09] [L03] gpu: on two GPUs parts of a batch are normalised as the whole is on the CPU", "[gpu][more]") {
  troupe::test::need_devices(2);
  const auto rendezvous = std::make_shared<LocalRendezvous>();
  const auto batch = torch::sin(torch::arange(12 * 6 * 5 * 4) * 0.7).view({12, 6, 5, 4});
  const auto weights = torch::cos(torch::arange(12 * 6 * 5 * 4) * 1.0).view({12, 6, 5, 4});
  nn::BatchNorm2d stock(6);
  auto whole = batch.clone().requires_grad_();
  (stock->forward(whole) * weights).sum().backward();
  std::vector<std::thread> threads;
  std::vector<std::string> errors(2);
  std::vector<at::Tensor> gradients(2), variances(2);
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CommunicatorOptions options;
      options.rank = r;
      options.world_size = 2;
      options.device = {at::kCUDA, static_cast<c10::DeviceIndex>(r)};
      options.rendezvous = rendezvous;
      const auto own = static_cast<std::size_t>(r);
      try {
        const std::shared_ptr<Communicator> communicator = make_communicator(options);
        nn::BatchNorm2d norm(6);
        norm->to(options.device);
        norm->synchronise(communicator, "norm");
        auto input = batch.narrow(0, 5 * r, 5 + 2 * r).to(options.device).requires_grad_();
        (norm->forward(input) * weights.narrow(0, 5 * r, 5 + 2 * r).to(options.device)).sum().backward();
        communicator->wait_on_host();
        gradients[own] = input.grad().cpu();
        variances[own] = norm->running_var.cpu();
      } catch (const std::exception& error) {
        errors[own] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  REQUIRE(joined(errors) == "");
  CHECK((torch::cat(gradients) - whole.grad()).abs().max().item<double>() < 1e-4);
  for (const auto& variance : variances) CHECK((variance - stock->running_var).abs().max().item<double>() < 1e-5);
}
