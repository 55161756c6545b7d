// Every strategy on a device, without one (tests/support/fake_device.hpp), beside the same on the CPU.
#include <c10/core/AutogradState.h>

#include "actors/block/block.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/layers/parallel_layers.hpp"
#include "tests/catch.hpp"
#include "tests/share.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using troupe::test::FakeDevice;

namespace {

constexpr std::int64_t kWidth = 8, kLayers = 4;

struct LayerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
  troupe::nn::Linear up = register_module("up", troupe::nn::Linear(kWidth, kWidth)),
                     down = register_module("down", troupe::nn::Linear(kWidth, kWidth));
};
TROUPE_BLOCK(Layer);

struct LayersImpl : torch::nn::Module {
  LayersImpl() {
    const auto list = register_module("layers", std::make_shared<torch::nn::ModuleListImpl>());
    for (std::int64_t i = 0; i < kLayers; ++i) list->push_back(layers.emplace_back());
  }
  // (B, T, kWidth) -> the same
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<Layer> layers;
};

struct Ran {
  std::map<std::int64_t, double> losses;  // by step
  std::map<std::int64_t, double> norms;
  std::vector<std::string> errors;
  std::int64_t generations = 0;
};

// `breaks_at`: a step whose loss is finite and its gradients are not; -1: none. `dies`: a fault of rank 1's first life.
Ran train_placed(const Config& config, bool on_device, std::int64_t breaks_at = -1,
                 std::optional<PlacedFault> dies = std::nullopt) {
  FakeDevice::reset();
  Ran ran;
  std::mutex mutex;
  auto simulation = testing::simulation_of(config);
  if (on_device) {
    simulation.rank.device = FakeDevice::device();
    simulation.rank.nccl = std::make_shared<troupe::test::ThreadNccl>();
  }
  if (dies) {
    simulation.recovery.enabled = true;
    simulation.recovery.replace_timeout = std::chrono::seconds(60);  // as many ranks as before
    simulation.faults = [dies](int slot, int life) {
      return slot == 1 && life == 0 ? std::vector{*dies} : std::vector<PlacedFault>();
    };
    simulation.on_membership = [&ran](const Membership& next) { ran.generations = next.generation; };
  }
  const auto input = torch::randn({64, 2, kWidth}, at::detail::createCPUGenerator(5));
  const auto data = std::make_shared<TensorDataset>(input, input.cumsum(1).sin());
  const auto body = [&](Rank& rank) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    const auto model = testing::make_seeded<LayersImpl>(3);
    rank.distribute(model);
    const auto optimizer = rank.make_optimizer(*model);
    const auto loss_of = [&](const Batch& batch) {
      const auto output = model->forward(batch.input);
      auto loss = (output - batch.target.to(rank.device())).square().mean();
      if (rank.steps_done() != breaks_at) return loss;
      return loss + (output - output.detach()).sqrt().sum();
    };
    testing::StepBatches of_step;
    auto stream = rank.loader(data);
    while (const auto batch = stream.next()) {
      if (!of_step.take(rank, batch, loss_of)) continue;
      const auto report = rank.step(*optimizer);
      if (rank.rank() != 0 || report.repeat) continue;
      std::lock_guard lock(mutex);
      ran.losses[report.step] = report.loss;
      ran.norms[report.step] = report.gradient_norm;
    }
  };
  testing::run_simulation(config, simulation, body, [&](int slot, const ErrorReport& report) {
    ran.errors.push_back("rank " + std::to_string(slot) + ": " + report.to_string());
  });
  return ran;
}

Config small_config(int ranks, const std::string& strategy) {
  Config config;
  config.strategy = strategy;
  config.ranks = ranks;
  config.batch_size = 8;
  config.grad_accum_steps = 2;
  config.optimizer = "adamw";
  config.lr = 0.02;
  config.clip_norm = 0.5;
  config.epochs = 10;
  config.max_steps = 6;
  config.collective_timeout = 20;
  config.bucket_cap_mb = config.first_bucket_mb = 1e-3;
  config.fsdp_mapped = false;
  config.tensor_plan = "layers.*.up: column, layers.*.down: row";
  return config;
}

struct StrategyCase {
  std::string what;
  int ranks;
  std::string strategy;
  std::function<void(Config&)> change;
  bool has_copies = true;  // of each parameter, on another rank or in a snapshot there
};

const std::vector<StrategyCase>& cases() {
  static const std::vector<StrategyCase> all = {
      {"ddp", 2, "ddp", [](Config&) {}},
      {"zero1", 2, "zero1", [](Config&) {}},
      {"zero2", 2, "zero2", [](Config&) {}},
      {"fsdp", 2, "fsdp", [](Config&) {}},
      {"fsdp, shard_grad_op", 2, "fsdp", [](Config& c) { c.fsdp_mode = "shard_grad_op"; }},
      {"fsdp, hybrid_shard", 4, "fsdp", [](Config& c) { c.fsdp_mode = "hybrid_shard", c.fsdp_shard_size = 2; }},
      {"pipeline", 2, "pipeline", [](Config& c) { c.mesh = "pp=2"; }, false},
      {"pipeline, measured", 2, "pipeline", [](Config& c) { c.mesh = "pp=2", c.pipeline_costs = "measured"; }, false},
      {"pipeline, two chunks", 2, "pipeline",
       [](Config& c) { c.mesh = "pp=2", c.pipeline_chunks = 2, c.pipeline_schedule = "interleaved"; }, false},
      {"pipeline, zero_bubble", 2, "pipeline", [](Config& c) { c.mesh = "pp=2", c.pipeline_schedule = "zero_bubble"; },
       false},
      {"pipeline of copies", 4, "pipeline", [](Config& c) { c.mesh = "dp=2,pp=2"; }},
      {"tensor_parallel", 2, "tensor_parallel", [](Config& c) { c.mesh = "tp=2"; }, false},
      {"tensor_parallel, tokens", 2, "tensor_parallel", [](Config& c) { c.mesh = "tp=2", c.sequence_parallel = true; },
       false},
      {"mesh of layers and stages", 4, "pipeline", [](Config& c) { c.mesh = "tp=2,pp=2"; }, false},
      {"copies of layers", 4, "tensor_parallel", [](Config& c) { c.mesh = "dp=2,tp=2"; }},
      {"mesh of shards and stages", 4, "pipeline", [](Config& c) { c.mesh = "fsdp=2,pp=2"; }},
      {"mesh of shards and layers", 4, "tensor_parallel", [](Config& c) { c.mesh = "fsdp=2,tp=2"; }},
      {"local_sgd", 2, "local_sgd", [](Config& c) { c.sync_every = 2; }},
      {"diloco", 2, "diloco", [](Config& c) { c.sync_every = 2; }},
      {"parameter_server", 2, "parameter_server", [](Config& c) { c.staleness = 0, c.grad_accum_steps = 1; }},
      {"parameter_server of one rank, stale", 1, "parameter_server",
       [](Config& c) { c.staleness = 3, c.grad_accum_steps = 1; }},
  };
  return all;
}

double largest(const std::map<std::int64_t, double>& a, const std::map<std::int64_t, double>& b) {
  if (a.size() != b.size() || a.empty()) return 1e9;
  double worst = 0;
  for (const auto& [step, value] : a)
    worst = std::max(worst, std::abs(value - b.at(step)) / std::max(1.0, std::abs(value)));
  return worst;
}

}  // namespace

TEST_CASE("[L03] [G01] every strategy trains on a device to the CPU's losses and gradient norms") {
  const auto& one = cases()[GENERATE(range(std::size_t{0}, cases().size()))];
  INFO(one.what);
  auto config = small_config(one.ranks, one.strategy);
  one.change(config);
  const auto cpu = train_placed(config, false), device = train_placed(config, true);
  REQUIRE(testing::joined(cpu.errors) == "");
  REQUIRE(testing::joined(device.errors) == "");
  REQUIRE(cpu.losses.size() >= 4);
  CHECK(largest(cpu.losses, device.losses) < 1e-6);
  CHECK(largest(cpu.norms, device.norms) < 1e-6);
}

TEST_CASE("[L03] in every strategy a rank on a device dies and is replaced, and the losses are the CPU's") {
  const auto& one = cases()[GENERATE(range(std::size_t{0}, cases().size()))];
  const std::string place = GENERATE("backward", "vote", "committed");
  if (!testing::in_share(0.3, one.what + place)) return;
  INFO(one.what << ", " << place);
  auto config = small_config(one.ranks, one.strategy);
  one.change(config);
  config.snapshot_every = 2;
  if (one.ranks == 1) return;  // no other is left
  const PlacedFault dies{.place = place, .step = 3};
  const auto cpu = train_placed(config, false, -1, dies), device = train_placed(config, true, -1, dies);
  if (!one.has_copies) {
    CHECK_THAT(testing::joined(cpu.errors), Catch::Contains("no other rank holds the part"));
    CHECK_THAT(testing::joined(device.errors), Catch::Contains("no other rank holds the part"));
    return;
  }
  REQUIRE(testing::joined(cpu.errors) == "");
  REQUIRE(testing::joined(device.errors) == "");
  CHECK(cpu.generations == 2);
  CHECK(device.generations == 2);
  REQUIRE(cpu.losses.size() >= 4);
  CHECK(largest(cpu.losses, device.losses) < 1e-6);
  CHECK(largest(cpu.norms, device.norms) < 1e-6);
}

TEST_CASE("[L03] a model in f64 trains on a device to the CPU's losses and gradient norms") {
  struct DefaultDtype {
    DefaultDtype() { torch::set_default_dtype(caffe2::TypeMeta::Make<double>()); }
    ~DefaultDtype() { torch::set_default_dtype(caffe2::TypeMeta::Make<float>()); }
  } f64;
  const std::string strategy = GENERATE("ddp", "zero2", "fsdp", "local_sgd", "diloco");
  INFO(strategy);
  auto config = small_config(2, strategy);
  config.sync_every = 2;
  const auto cpu = train_placed(config, false), device = train_placed(config, true);
  REQUIRE(testing::joined(cpu.errors) == "");
  REQUIRE(testing::joined(device.errors) == "");
  CHECK(largest(cpu.losses, device.losses) < 1e-12);
  CHECK(largest(cpu.norms, device.norms) < 1e-12);
}

TEST_CASE("[L03] on a device a gradient that is not finite is found whatever cuts the model") {
  const auto mesh = GENERATE("pp=2", "tp=2", "fsdp=2,pp=2");
  INFO(mesh);
  auto config = small_config(std::string(mesh).find(',') == std::string::npos ? 2 : 4, "pipeline");
  config.mesh = mesh;
  const auto cpu = train_placed(config, false, 2), device = train_placed(config, true, 2);
  REQUIRE(cpu.errors.size() == device.errors.size());
  REQUIRE(!device.errors.empty());
  CHECK(device.losses.size() == 2);
  CHECK_THAT(testing::joined(device.errors), Catch::Contains("is not finite") && Catch::Contains("layers."));
}
