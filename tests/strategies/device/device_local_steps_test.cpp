// Strategies whose ranks train by themselves, on a device, without one: see device_training_test.cpp.
#include "actors/strategy/saved_state.hpp"
#include "strategies/replicated/local_steps.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using testing::largest_difference;
using testing::SmallTraining;
using troupe::test::FakeDevice;

namespace {

constexpr std::int64_t kLocalSteps = 13;

SmallTraining::Result train_apart(bool on_device, const std::string& strategy, int ranks,
                                  const std::function<void(SmallTraining&)>& change = {}) {
  FakeDevice::reset();
  SmallTraining training(strategy, ranks);
  training.steps = kLocalSteps;
  training.optimizer.momentum = 0.9;
  training.jobs.options.strategy.sync_every = 4;
  if (on_device) {
    training.jobs.options.device = FakeDevice::device();
    training.jobs.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
    training.model = [make = training.model] {
      auto model = make();
      model->to(FakeDevice::device());
      return model;
    };
    training.forward = [](torch::nn::Module& model, const at::Tensor& input) {
      return dynamic_cast<testing::SmallMlpImpl&>(model).forward(input.to(FakeDevice::device()));
    };
  }
  if (change) change(training);
  auto result = training.run();
  REQUIRE(testing::joined(result.errors) == "");
  return result;
}

}  // namespace

TEST_CASE("[X05] [L03] local_sgd and diloco train on a device to the bits of the CPU") {
  const auto strategy = GENERATE(as<std::string>{}, "local_sgd", "diloco");
  const int ranks = GENERATE(1, 2, 3);
  const std::int64_t overlap = GENERATE(0, 1);
  const auto hook = GENERATE(as<std::string>{}, "none", "bf16");
  INFO(strategy << ", " << ranks << " ranks, overlap " << overlap << ", " << hook);
  const auto set = [&](SmallTraining& training) {
    auto& options = training.jobs.options.strategy;
    options.comm_hook = hook;
    options.diloco_overlap = overlap;
    options.diloco_fragments = 2;
    options.diloco_mixing = 0.25;
  };
  const auto cpu = train_apart(false, strategy, ranks, set), device = train_apart(true, strategy, ranks, set);
  CHECK((cpu.losses.size() == kLocalSteps));
  CHECK(largest_difference(cpu.losses, device.losses) == 0);
  CHECK(largest_difference(cpu.state, device.state) == 0);  // of the outer optimizer too
}

TEST_CASE(
    "[X05] [L03] on a device an outer step comes after the optimizer, and the next step after it, by events alone") {
  const std::int64_t overlap = GENERATE(0, 1);
  std::int64_t before = 0;
  int items = 0;
  std::set<std::string> streams;
  // Alone, with momentum: the outer step is one all the same.
  train_apart(true, "diloco", 1, [&](SmallTraining& training) {
    auto& options = training.jobs.options;
    options.strategy.diloco_overlap = overlap;
    options.strategy.diloco_fragments = 2;
    options.strategy.comm_hook = "bf16";  // which touches what is averaged: one rank's NCCL does not
    options.training.verify_every = options.training.snapshot_every = 0;
    training.before_step = [&](RankSystem&, torch::nn::Module&, std::int64_t step) {
      if (step != 2) return;
      FakeDevice::look_for_races();
      before = host_waits();
      items = FakeDevice::items();
    };
    training.at_end = [&](RankSystem& system, Optimizer&) {
      CHECK((FakeDevice::races() == std::vector<std::string>{}));
      CHECK((host_waits() - before == kLocalSteps - 2));  // for the vote
      CHECK((FakeDevice::items() == items));
      CHECK(dynamic_cast<LocalSteps&>(system.compute().strategy()).outer_steps() >= 5);
      for (const auto& call : FakeDevice::calls()) streams.insert(call.substr(0, call.find(' ')));
    };
  });
  CHECK((std::count_if(streams.begin(), streams.end(), [](const std::string& name) { return name[0] == 's'; }) >= 2));
}

TEST_CASE("[X05] [L03] on a device a rank that missed an outer step takes it over in the next generation") {
  (void)train_apart(true, "diloco", 3, [](SmallTraining& training) {
    training.steps = 8;
    training.before_step = [](RankSystem& system, torch::nn::Module& model, std::int64_t step) {
      if (step != 6) return;
      torch::NoGradGuard no_grad;
      auto& compute = system.compute();
      auto& strategy = compute.strategy();
      auto state = strategy.saved_state().state();
      if (compute.rank() == 1) {
        state["local_steps.outer_steps"] = "0";
        state["local_steps.next"] = "4";
        strategy.saved_state().load_state(state);
        for (const auto& [name, tensor] : strategy.strategy_tensors()) tensor.fill_(7);
      }
      const auto before = model.parameters().front().detach().cpu().clone();
      strategy.rejoin(testing::next_generation(compute));
      CHECK(strategy.saved_state().state()["local_steps.outer_steps"] == "1");
      const auto outer = strategy.strategy_tensors().front().second.cpu();
      CHECK(outer.eq(7).sum().item<std::int64_t>() == 0);
      const auto now = model.parameters().front().detach().cpu();
      CHECK((compute.rank() == 1 ? now.equal(outer) : now.equal(before)));
    };
  });
}

TEST_CASE("[X06] [L03] on a device a job that changes its strategy while it runs has the bits of the CPU's") {
  const int ranks = GENERATE(1, 2);
  const auto set = [](SmallTraining& training) {
    training.jobs.options.strategy.switch_at = "3:diloco,8:ddp+bf16,11:local_sgd";
    if (training.jobs.options.device.is_cpu()) return;
    training.before_step = [](RankSystem& system, torch::nn::Module&, std::int64_t step) {
      if (step == 1 && system.compute().world_size() == 1) FakeDevice::look_for_races();
    };
    training.at_end = [](RankSystem&, Optimizer&) { CHECK((FakeDevice::races() == std::vector<std::string>{})); };
  };
  const auto cpu = train_apart(false, "ddp", ranks, set), device = train_apart(true, "ddp", ranks, set);
  CHECK((cpu.losses.size() == kLocalSteps));
  CHECK(largest_difference(cpu.losses, device.losses) == 0);
  CHECK(largest_difference(cpu.state, device.state) == 0);
}
