// The sharded strategies on a device, without one: see device_training_test.cpp. Streams are held against each other by
// what copies touch.
#include <c10/core/AutogradState.h>

#include "actors/block/block.hpp"
#include "actors/strategy/evaluation.hpp"
#include "strategies/sharded/sharded_strategy.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using namespace troupe::testing;
using troupe::test::FakeDevice;

namespace {

// Made on the host, then on `device`: LibTorch's `to` of modules knows its own devices only.
struct UnitLayerImpl : torch::nn::Module {
  UnitLayerImpl(std::int64_t in, std::int64_t out, c10::Device device)
      : weight(register_parameter("weight", (torch::randn({out, in}) / std::sqrt(static_cast<double>(in))).to(device))),
        bias(register_parameter("bias", (torch::randn({out}) / 10).to(device))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(torch::nn::functional::linear(x, weight, bias)); }
  at::Tensor weight, bias;
};
TROUPE_BLOCK(UnitLayer);

// Units, parameters that belong to none, a frozen one and a buffer that forward changes.
struct UnitStackImpl : torch::nn::Module {
  explicit UnitStackImpl(c10::Device device)
      : in(register_module("in", std::make_shared<UnitLayerImpl>(8, 13, device))),
        out(register_module("out", std::make_shared<UnitLayerImpl>(13, 3, device))),
        seen(register_buffer("seen", torch::zeros({2}).to(device))) {
    for (int i = 0; i < 3; ++i)
      layers.emplace_back(register_module("layer" + std::to_string(i), UnitLayer(13, 13, device)));
    layers[1]->bias.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& input) {
    auto x = in->forward(input.to(in->bias.scalar_type()));
    for (std::size_t i = 0; i < used; ++i) x = layers[i](x);
    if (is_training()) {
      at::NoGradGuard no_grad;
      seen.add_(x.detach().to(at::kFloat).mean());
    }
    return out->forward(x.to(out->bias.scalar_type()));
  }
  std::shared_ptr<UnitLayerImpl> in, out;
  at::Tensor seen;
  std::vector<UnitLayer> layers;
  std::size_t used = 3;  // of the layers
};

// On the calling rank's thread. LibTorch has one thread for a device's backwards: here ranks share a device, and one of
// them would wait there, for a unit of the others, with theirs behind it.
std::shared_ptr<UnitStackImpl> make_units(c10::Device device) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  return make_seeded<UnitStackImpl>(5, device);
}

using Change = std::function<void(SmallTraining&)>;

SmallTraining::Result train_units(bool on_device, const std::string& strategy, int ranks, const Change& change = {}) {
  FakeDevice::reset();
  SmallTraining training(strategy, ranks);
  training.steps = 6;
  training.lr = 0.05;
  training.optimizer.optimizer = "adamw";
  training.jobs.options.strategy.fsdp_mapped = false;  // one rank gathers too
  training.jobs.options.strategy.fsdp_shard_size = ranks == 4 ? 2 : 1;
  const auto device = on_device ? FakeDevice::device() : c10::Device(at::kCPU);
  training.jobs.options.device = device;
  if (on_device) training.jobs.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
  training.model = [device] { return make_units(device); };
  training.forward = [device](torch::nn::Module& model, const at::Tensor& input) {
    return dynamic_cast<UnitStackImpl&>(model).forward(input.to(device));
  };
  if (change) change(training);
  auto result = training.run();
  INFO(strategy << " on " << ranks << (on_device ? ", on a device" : ""));
  REQUIRE(joined(result.errors) == "");
  return result;
}

// Parameters, moments and buffers too.
void check_as_on_cpu(const std::string& strategy, int ranks, const Change& change, double tolerance = 0) {
  INFO(strategy << " on " << ranks);
  const auto cpu = train_units(false, strategy, ranks, change), device = train_units(true, strategy, ranks, change);
  CHECK((cpu.losses.size() == 6));
  CHECK(largest_difference(cpu.losses, device.losses) <= tolerance);
  CHECK(largest_difference(cpu.state, device.state) <= tolerance);
}

ShardedStrategy& sharded_of(RankSystem& system) { return dynamic_cast<ShardedStrategy&>(system.compute().strategy()); }

const std::vector<std::string> kSharded = {
    "zero1", "zero2", "fsdp full_shard", "fsdp shard_grad_op", "fsdp hybrid_shard", "fsdp no_shard"};

}  // namespace

TEST_CASE("[L03] [F01] the sharded strategies train on a device to the bits of the CPU") {
  const auto strategy = GENERATE(from_range(kSharded));
  const int ranks = GENERATE(1, 2, 4);
  const bool offload = GENERATE(false, true);
  check_as_on_cpu(strategy, ranks,
                  [&](SmallTraining& training) { training.jobs.options.strategy.fsdp_cpu_offload = offload; });
}

TEST_CASE("[L03] sharded on a device, micro-batches, bf16 and clipping are those of the CPU") {
  const std::string strategy = GENERATE("zero1", "zero2", "fsdp full_shard");
  const bool offload = GENERATE(false, true), each = GENERATE(false, true);
  const auto with = [&](const Change& more) {
    return [=](SmallTraining& training) {
      training.jobs.options.strategy.fsdp_cpu_offload = offload;
      training.jobs.options.strategy.fsdp_sync_micro_batches = each;
      training.jobs.options.training.grad_accum_steps = 2;
      more(training);
    };
  };
  check_as_on_cpu(strategy, 2, with([](SmallTraining& training) {
                    training.optimizer.momentum = 0.9, training.optimizer.optimizer = "sgd";
                  }));
  check_as_on_cpu(strategy, 2, with([](SmallTraining& training) {
                    training.jobs.options.strategy.param_dtype = "bfloat16";
                    training.jobs.options.strategy.reduce_dtype = "bfloat16";
                  }));
  // The norm is added up in another order than on the CPU.
  check_as_on_cpu(strategy, 2, with([](SmallTraining& training) { training.jobs.options.training.clip_norm = 0.05; }),
                  1e-6);
}

TEST_CASE("[L03] sharded on a device, a state that the CPU saved goes on with the CPU's bits") {
  const bool offload = GENERATE(false, true);
  const auto whole = train_units(false, "fsdp full_shard", 2),
             first = train_units(false, "fsdp full_shard", 2, [](SmallTraining&training) { training.steps = 3; });
  const auto second = train_units(true, "fsdp full_shard", 2, [&](SmallTraining& training) {
    training.first_step = training.steps = 3;
    training.saved = first.state;
    training.jobs.options.strategy.fsdp_cpu_offload = offload;
  });
  CHECK(largest_difference(whole.state, second.state) == 0);
}

TEST_CASE("[L03] sharded on a device, no stream touches memory before those that used it last are past it") {
  const std::string strategy = GENERATE("zero1", "zero2", "fsdp full_shard", "fsdp shard_grad_op");
  const bool offload = GENERATE(false, true), each = GENERATE(false, true);
  INFO(strategy << (offload ? ", offload" : "") << (each ? ", each" : ""));
  std::set<std::string> streams;
  train_units(true, strategy, 1, [&](SmallTraining& training) {
    training.jobs.options.strategy.fsdp_cpu_offload = offload;
    training.jobs.options.strategy.fsdp_sync_micro_batches = each;
    training.jobs.options.training.grad_accum_steps = 2;
    training.jobs.options.training.snapshot_every = 0;
    // The last unit is gathered for the second micro-batch of step 4, as in the steps before, and not asked for.
    training.forward = [calls = 0](torch::nn::Module& model, const at::Tensor& input) mutable {
      auto& stack = dynamic_cast<UnitStackImpl&>(model);
      stack.used = ++calls == 10 ? 2 : 3;
      return stack.forward(input.to(FakeDevice::device()));
    };
    training.before_step = [&](RankSystem& system, torch::nn::Module& model, std::int64_t step) {
      if (step == 1) FakeDevice::look_for_races();
      if (step != 3) return;
      torch::NoGradGuard no_grad;
      auto& own = system.compute().strategy().evaluation();
      own.begin_evaluation();
      (void)dynamic_cast<UnitStackImpl&>(model).forward(at::ones({2, 8}).to(FakeDevice::device()));
      own.end_evaluation();
    };
    training.at_end = [&](RankSystem&, Optimizer&) {
      CHECK((FakeDevice::races() == std::vector<std::string>{}));
      for (const auto& call : FakeDevice::calls()) streams.insert(call.substr(0, call.find(' ')));
    };
  });
  // Compute, the reducer, and where units come and go the gathers: not all was on one stream.
  CHECK((std::count_if(streams.begin(), streams.end(), [](const std::string& name) { return name[0] == 's'; }) ==
         (strategy.starts_with("fsdp") ? 3 : 2)));
}

TEST_CASE("[L03] sharded on a device, forward and backward are launched while nothing on the device is over") {
  const bool offload = GENERATE(false, true);
  FakeDevice::reset();
  SmallTraining training("fsdp full_shard", 2);  // registers the strategies
  auto& cluster = training.jobs;
  cluster.options.device = FakeDevice::device();
  cluster.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
  cluster.options.strategy.fsdp_cpu_offload = offload;
  std::atomic<int> launched{0};
  const auto errors = cluster.run([&](RankSystem& system) {
    auto& compute = system.compute();
    const auto model = make_units(FakeDevice::device());
    compute.distribute(model);
    const auto optimizer = make_optimizer(OptimizerOptions{}, one_group(*model));
    for (std::int64_t step = 0; step < 4; ++step) {
      compute.program_communicator().barrier("held");
      if (step == 2 && compute.rank() == 0) FakeDevice::hold();
      compute.program_communicator().barrier("held");
      const auto waits = host_waits();
      compute.backward(model->forward(small_batch(step).first.to(FakeDevice::device())).square().mean(), 16);
      if (host_waits() != waits) throw std::runtime_error("the host waited for the device");
      compute.program_communicator().barrier("launched");
      if (step == 2) ++launched;
      if (compute.rank() == 0) FakeDevice::release();
      compute.program_communicator().barrier("released");
      compute.step(*optimizer, 0.1);
    }
  });
  CHECK(joined(errors) == "");
  CHECK((launched == 2));
}

TEST_CASE("[L03] sharded on a device, the host waits once in a step, for the vote, and reads no value besides") {
  const std::int64_t steps = 8;
  std::int64_t before = 0;
  int items = 0;
  train_units(true, "fsdp full_shard", 2, [&](SmallTraining& training) {
    training.steps = steps;
    training.jobs.options.training.snapshot_every = 0;
    training.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t step) {
      if (system.compute().rank() != 0 || step != 2) return;
      before = host_waits();
      items = FakeDevice::items();
    };
    training.at_end = [&](RankSystem& system, Optimizer&) {
      system.compute().program_communicator().barrier("end");
      if (system.compute().rank() == 0) {
        const auto waits =
            host_waits() - before;  // the other rank may be up to one step ahead or behind where the count began
        CHECK(waits >= 2 * (steps - 2) - 1);
        CHECK(waits <= 2 * (steps - 2) + 1);
        CHECK((FakeDevice::items() == items));
      }
      system.compute().program_communicator().barrier("counted");  // the state that is read next has values to read
    };
  });
}

TEST_CASE("[T01] [L03] sharded on a device, a gradient that is not finite skips the step on all ranks, by name") {
  const std::string mode = GENERATE("full_shard", "hybrid_shard");
  const bool offload = GENERATE(false, true);
  SmallTraining training("fsdp " + mode, 2);
  auto& cluster = training.jobs;
  cluster.options.strategy.fsdp_shard_size = 1;
  cluster.options.strategy.fsdp_cpu_offload = offload;
  cluster.options.device = FakeDevice::device();
  cluster.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
  cluster.options.training.on_not_finite = "skip";
  std::vector<StepReport> reports;
  std::mutex mutex;
  const auto errors = cluster.run([&](RankSystem& system) {
    auto& compute = system.compute();
    const auto model = make_units(FakeDevice::device());
    compute.distribute(model);
    const auto optimizer = make_optimizer(OptimizerOptions{}, one_group(*model));
    const auto masters = [&] {
      std::vector<at::Tensor> values;
      for (const auto& flat : sharded_of(system).parameters().flats()) values.push_back(flat.master.cpu().clone());
      return values;
    };
    const auto before = masters();
    const auto loss = model->forward(small_batch(0).first.to(FakeDevice::device())).square().mean();
    // Finite itself, its gradient is not: on rank 1 alone.
    const auto extra = (model->out->bias - model->out->bias.detach()).abs().sqrt().sum();
    compute.backward(compute.rank() == 1 ? loss + extra : loss, 16);
    const auto report = compute.step(*optimizer, 0.1);
    const auto after = masters();
    for (std::size_t f = 0; f < before.size(); ++f) {
      if (!torch::equal(before[f], after[f])) throw std::runtime_error("the step was applied");
    }
    std::lock_guard lock(mutex);
    reports.push_back(report);
  });
  CHECK(joined(errors) == "");
  REQUIRE((reports.size() == 2));
  for (const auto& report : reports) {
    CHECK_FALSE(report.committed);
    CHECK_THAT(report.reason, Catch::Contains("the gradient of out.bias is not finite"));
  }
}

TEST_CASE(
    "[F08] with offload shards, their gradients and moments are in the host's memory, and the device is without them") {
  const std::string strategy = GENERATE("zero1", "zero2", "fsdp full_shard", "fsdp no_shard");
  std::map<bool, std::int64_t> held;  // on the device, between steps
  std::int64_t shards = 0;            // bytes of masters, gradients and moments
  for (const bool offload : {false, true}) {
    train_units(true, strategy, 1, [&](SmallTraining& training) {
      training.jobs.options.strategy.fsdp_cpu_offload = offload;
      training.jobs.options.strategy.fsdp_prefetch = 0;  // how far ahead the gathers come is a matter of threads
      training.at_end = [&](RankSystem& system, Optimizer& optimizer) {
        // So is whether the reducer was in time to give a buffer back.
        held[offload] = FakeDevice::bytes() - sharded_of(system).gradients().buffer_bytes();
        shards = 0;
        const auto expected = offload ? c10::Device(at::kCPU) : FakeDevice::device();
        auto& parameters = sharded_of(system).parameters();
        for (const auto& flat : parameters.flats()) {
          CHECK((flat.master.device() == expected));
          CHECK((flat.whole.device() == FakeDevice::device()));
          const bool is_part =
              flat.residence != Residence::gathered;  // without offload it is a part of the whole, which stays
          if (!is_part) shards += static_cast<std::int64_t>(flat.master.nbytes());
          if (!flat.gradient.defined()) continue;
          CHECK((flat.gradient.device() == expected));
          if (strategy != "zero1" && strategy != "fsdp no_shard")
            shards += static_cast<std::int64_t>(flat.gradient.nbytes());
        }
        for (const auto& slice : parameters.slices()) CHECK((slice.leaf.device() == expected));
        for (const auto& [name, moment] : optimizer.state()) {
          CHECK((moment.device() == expected));
          shards += static_cast<std::int64_t>(moment.nbytes());
        }
      };
    });
  }
  CHECK(shards > 2 * 4 * (8 * 13 + 3 * 13 * 13));  // two moments at the least
  CHECK(held[true] <= held[false] - shards);
}

TEST_CASE("[F08] offload on the CPU is what is there anyway") {
  const auto without = train_units(false, "fsdp full_shard", 2);
  const auto with = train_units(false, "fsdp full_shard", 2, [](SmallTraining& training) {
    training.jobs.options.strategy.fsdp_cpu_offload = true;
    training.jobs.options.strategy.fsdp_mapped = true;
    training.at_end = [](RankSystem& system, Optimizer&) {
      if (system.compute().rank() != 0) return;
      for (const auto& flat : sharded_of(system).parameters().flats()) CHECK((flat.residence == Residence::mapped));
    };
  });
  CHECK(largest_difference(without.state, with.state) == 0);
}

TEST_CASE("[L03] [F01] fsdp on a device gathers a unit by one copy and one launch, and reduces it by one launch") {
  const std::string strategy = GENERATE("fsdp full_shard", "fsdp shard_grad_op");
  const auto nccl = std::make_shared<troupe::test::ThreadNccl>();
  struct Counts {
    std::int64_t gathers, reductions;
    double copies;
  };
  std::map<std::int64_t, Counts> at;  // by step
  train_units(true, strategy, 2, [&](SmallTraining& training) {
    training.jobs.options.nccl = nccl;
    training.jobs.options.training.snapshot_every = 0;
    training.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t step) {
      if (step != 2 && step != 5) return;
      system.compute().program_communicator().barrier("counts");  // both are between the same two steps
      if (system.compute().rank() == 0) {
        FakeDevice::copies_take(1, 100);
        at[step] = {nccl->calls_from(4, "all_gather"), nccl->calls_from(4, "reduce_scatter"),
                    FakeDevice::copying_ms(100)};
      }
      system.compute().program_communicator().barrier("counts");
    };
  });
  const auto in_a_step = [&](auto counts) { return (counts(at.at(5)) - counts(at.at(2))) / 3 / 2; };  // and on a rank
  // A layer is one flat tensor, the one with a frozen bias two. With full_shard they come again for backward, except
  // the layer that forward used last. The two layers outside of units are kept whole, and gathered after the optimizer.
  const int units = strategy == "fsdp full_shard" ? 4 + 3 : 4, kept = 2;
  CHECK(in_a_step([](const Counts& counts) { return counts.copies; }) == units);
  CHECK(in_a_step([](const Counts& counts) { return counts.gathers; }) == units + kept);
  CHECK(in_a_step([](const Counts& counts) { return counts.reductions; }) == 3 + kept);
}
