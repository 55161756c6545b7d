// Sharded training on the device beside sharded training on the CPU. One rank, which gathers all the same: by copies,
// and by NCCL itself.
#include "actors/block/block.hpp"
#include "tensor_io/device/accelerator.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct UnitImpl : torch::nn::Module {
  UnitImpl(std::int64_t in, std::int64_t out) : linear(register_module("linear", torch::nn::Linear(in, out))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};
TROUPE_BLOCK(Unit);

// Units, and parameters that belong to none.
struct UnitsImpl : torch::nn::Module {
  UnitsImpl() {
    for (int i = 0; i < 4; ++i) units.push_back(register_module("unit" + std::to_string(i), Unit(33, 33)));
  }
  at::Tensor forward(at::Tensor x) {
    x = first(x.to(first->weight.scalar_type()));
    for (auto& unit : units) x = unit(x);
    return last(x.to(last->weight.scalar_type()));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 33));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(33, 3));
  std::vector<Unit> units;
};

constexpr std::int64_t kSteps = 30;

struct How {
  bool offload = false;
  bool through_nccl = false;
  std::string param_dtype = "float32";
};

SmallTraining::Result train_sharded(at::Device device, const How& how, std::int64_t* waits = nullptr) {
  SmallTraining training("fsdp full_shard", 1);
  training.steps = kSteps;
  training.lr = 0.01;
  training.optimizer.optimizer = "adamw";
  auto& options = training.jobs.options;
  options.device = device;
  options.training.verify_every = 0;
  options.strategy.fsdp_mapped = false;
  options.strategy.fsdp_cpu_offload = how.offload;
  options.strategy.param_dtype = how.param_dtype;
  if (how.through_nccl) {
    options.communicator.backend = "nccl";
    options.nccl = accelerator()->nccl();
  }
  training.model = [device] {
    auto model = make_seeded<UnitsImpl>(1);
    model->to(device);
    return model;
  };
  training.forward = [device](torch::nn::Module& model, const at::Tensor& input) {
    return dynamic_cast<UnitsImpl&>(model).forward(input.to(device));
  };
  std::int64_t before = 0;
  training.before_step = [&](RankSystem&, torch::nn::Module&, std::int64_t step) {
    if (step == 10) before = host_waits();
  };
  training.at_end = [&](RankSystem&, Optimizer&) {
    if (waits != nullptr) *waits = host_waits() - before;
  };
  return training.run();
}

}  // namespace

TEST_CASE("[L03] gpu: fsdp trains to the CPU's losses, with offload and without, with one wait of the host in a step",
          "[gpu][sharded]") {
  troupe::test::need_devices(1);
  const auto cpu = train_sharded(at::kCPU, {});
  REQUIRE(joined(cpu.errors) == "");
  for (const bool offload : {false, true}) {
    for (const bool through_nccl : {false, true}) {
      INFO((offload ? "offload, " : "") << (through_nccl ? "NCCL" : "copies"));
      std::int64_t waits = 0;
      const auto device = train_sharded({at::kCUDA, 0}, {.offload = offload, .through_nccl = through_nccl}, &waits);
      CHECK(joined(device.errors) == "");
      CHECK(largest_difference(cpu.losses, device.losses) < 1e-4);
      CHECK(largest_difference(model_part(cpu.state), model_part(device.state)) < 1e-2);
      CHECK(waits == kSteps - 10);
    }
  }
}

TEST_CASE("[L03] gpu: fsdp in bf16 stays near the CPU's losses, and gives the same bits twice", "[gpu][sharded]") {
  troupe::test::need_devices(1);
  const How bf16{.param_dtype = "bfloat16"};
  const auto cpu = train_sharded(at::kCPU, {});
  const auto device = train_sharded({at::kCUDA, 0}, bf16), again = train_sharded({at::kCUDA, 0}, bf16);
  CHECK(joined(device.errors) == "");
  CHECK(largest_difference(cpu.losses, device.losses) < 0.03);
  CHECK(largest_difference(device.state, again.state) == 0);
}

TEST_CASE("[L03] gpu: memory for offloaded shards is pinned, has their size, and is copied to as LibTorch's own",
          "[gpu][sharded]") {
  troupe::test::need_devices(1);
  const auto memory = accelerator()->pinned(3'000'001);
  CHECK(memory.numel() == 3'000'001);
  CHECK(memory.is_pinned());
  CHECK(memory.sum().item<std::int64_t>() == 0);
  const auto there = torch::randint(255, {3'000'001}, torch::TensorOptions().dtype(at::kByte).device(at::kCUDA));
  memory.copy_(there, /*non_blocking=*/true);
  torch::cuda::synchronize();
  CHECK(torch::equal(memory, there.cpu()));
  CHECK(torch::equal(memory.to(at::kCUDA, /*non_blocking=*/true), there));
  CHECK(accelerator()->pinned(0).numel() == 0);
}
