// Training on a device, without one: its operators run on the host at once, its streams only write down what they are
// asked for (tests/support/fake_device.hpp), and NCCL is threads. What is held: the same losses and weights as on the
// CPU, who waits for whom, and that the host waits for the device once in a step.
#include <c10/core/AutogradState.h>

#include <atomic>
#include <thread>

#include "strategies/replicated/gradient_buckets.hpp"
#include "tensor_io/communicator/nccl/nccl_communicator.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/data/device_feed.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/noted_ranges.hpp"
#include "tests/support/scripted_nccl.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using namespace troupe::testing;
using troupe::test::FakeDevice;

namespace {

struct DeviceLinearImpl : torch::nn::Module {
  explicit DeviceLinearImpl(torch::nn::LinearImpl& host)
      : weight(register_parameter("weight", host.weight.detach().to(FakeDevice::device()))),
        bias(register_parameter("bias", host.bias.detach().to(FakeDevice::device()))) {}
  at::Tensor weight, bias;
};

// SmallMlp's values. Not by `to`, which LibTorch allows to its own devices only.
struct DeviceMlpImpl : torch::nn::Module {
  explicit DeviceMlpImpl(SmallMlpImpl& host)
      : first(register_module("first", std::make_shared<DeviceLinearImpl>(*host.first))),
        second(register_module("second", std::make_shared<DeviceLinearImpl>(*host.second))),
        last(register_module("last", std::make_shared<DeviceLinearImpl>(*host.last))) {}
  at::Tensor forward(const at::Tensor& x) const {
    const auto hidden = torch::tanh(torch::nn::functional::linear(x, first->weight, first->bias));
    return torch::nn::functional::linear(
        torch::tanh(torch::nn::functional::linear(hidden, second->weight, second->bias)), last->weight, last->bias);
  }
  std::shared_ptr<DeviceLinearImpl> first, second, last;
};

// Small batches and models; `work` may change the training before it runs.
SmallTraining::Result train_on(bool device, const std::string& strategy, int ranks,
                               const std::function<void(SmallTraining&)>& work = {}) {
  FakeDevice::reset();
  SmallTraining training(strategy, ranks);
  training.steps = 12;
  if (work) work(training);
  if (device) {
    training.jobs.options.device = FakeDevice::device();
    if (!training.jobs.options.nccl) training.jobs.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
    training.model = [make = training.model] {
      return std::make_shared<DeviceMlpImpl>(dynamic_cast<SmallMlpImpl&>(*make()));
    };
    training.forward = [ranks](torch::nn::Module& model, const at::Tensor& input) {
      // The ranks have one device, and so one thread of autograd: one would wait there for another.
      if (ranks > 1) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
      return dynamic_cast<DeviceMlpImpl&>(model).forward(input.to(FakeDevice::device()));
    };
  }
  return training.run();
}

void check_equal(const std::function<void(SmallTraining&)>& work, int ranks, double tolerance = 0) {
  const auto cpu = train_on(false, "ddp", ranks, work);
  const auto device = train_on(true, "ddp", ranks, work);
  REQUIRE(joined(cpu.errors) == "");
  REQUIRE(joined(device.errors) == "");
  CHECK((cpu.losses.size() == 12));
  CHECK(largest_difference(cpu.losses, device.losses) <= tolerance);
  CHECK(largest_difference(model_part(cpu.state), model_part(device.state)) <= tolerance);
}

}  // namespace

TEST_CASE("[L03] ddp trains on a device to the losses and weights of the CPU") {
  const int ranks = GENERATE(1, 2, 3);
  // The CPU divides by 3, the device multiplies by the third.
  check_equal([](SmallTraining& training) { training.optimizer.momentum = 0.9; }, ranks, ranks == 3 ? 1e-6 : 0);
}

TEST_CASE("[L03] on a device gradients are summed, and divided with the look at them") {
  const auto strategy = GENERATE("ddp", "fsdp full_shard", "fsdp hybrid_shard", "local_sgd", "diloco");
  const int ranks = GENERATE(2, 4);
  INFO(strategy << ", " << ranks << " ranks");
  const auto short_run = [](SmallTraining& training) { training.steps = 3; };
  const auto cpu = train_on(false, "ddp", ranks, short_run);
  auto nccl = std::make_shared<troupe::test::ThreadNccl>();
  const auto device = train_on(true, strategy, ranks, [&](SmallTraining& training) {
    short_run(training);
    training.jobs.options.strategy.fsdp_shard_size = 2;
    training.jobs.options.nccl = nccl;
  });
  REQUIRE(joined(device.errors) == "");
  CHECK(nccl->averages_from(8) == 0);
  if (strategy == std::string("local_sgd") || strategy == std::string("diloco")) return;  // not ddp's losses
  CHECK(largest_difference(cpu.losses, device.losses) <= (strategy == std::string("ddp") ? 0 : 1e-6));
}

TEST_CASE("[L03] on a device gradients in channels_last are packed as they lie, without a copy of each") {
  const auto copies_of = [](at::MemoryFormat format) {
    FakeDevice::reset();
    CommunicatorOptions options;
    options.device = FakeDevice::device();
    options.nccl = std::make_shared<troupe::test::ThreadNccl>();
    const auto communicator = make_communicator(options);
    const auto placed = [&](const at::Tensor& values) { return values.contiguous(format).to(FakeDevice::device()); };
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    const auto weight = placed(at::randn({4, 3, 2, 2})).requires_grad_();
    GradientBuckets buckets({{"weight", weight}}, {{"weight", {4, 3, 2, 2}, at::kFloat, true}}, *communicator, 1 << 20,
                            1 << 20, [](std::int32_t) {});
    buckets.begin_step();
    buckets.begin_backward(true, 1);
    const auto gradient = at::randn({4, 3, 2, 2});
    const auto there = placed(gradient);
    FakeDevice::copies_take(1, 0);
    torch::autograd::backward({weight}, {there});
    const auto copies = FakeDevice::copying_ms(0);
    CHECK(at::equal(weight.grad().cpu(), gradient));
    return copies;
  };
  CHECK(copies_of(at::MemoryFormat::ChannelsLast) == copies_of(at::MemoryFormat::Contiguous));
}

TEST_CASE("[L03] [T01] on a device the order of the buckets changes no bit of the gradient's norm") {
  FakeDevice::reset();
  CommunicatorOptions options;
  options.device = FakeDevice::device();
  options.nccl = std::make_shared<troupe::test::ThreadNccl>();
  const auto communicator = make_communicator(options);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  constexpr std::int64_t kNumel = 101;
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<ParameterLayout> shape;
  std::vector<at::Tensor> leaves, gradients;
  std::vector<std::int32_t> forward;
  for (std::int32_t p = 0; p < 20; ++p) {
    const auto on_device = [](const at::Tensor& values) { return values.to(FakeDevice::device()); };
    leaves.push_back(on_device(at::zeros({kNumel}, at::kDouble)).requires_grad_());
    gradients.push_back(on_device(at::zeros({kNumel}, at::kDouble)));
    parameters.emplace_back(std::to_string(p), leaves.back());
    shape.push_back({std::to_string(p), {kNumel}, at::kDouble, true});
    forward.push_back(p);
  }
  GradientBuckets buckets(parameters, shape, *communicator, 1 << 12, 1 << 12, [](std::int32_t) {});
  const auto checks = [&] {
    buckets.begin_step();
    buckets.begin_backward(true, 1);
    torch::autograd::backward(leaves, gradients);
    buckets.end_backward();
    return buckets.device_checks().sum(0).cpu();
  };
  const auto norms = [&](const std::vector<std::int32_t>& order) {
    buckets.rebuild(order);
    std::vector<at::Tensor> all;
    auto generator = at::detail::createCPUGenerator(7);
    for (int draw = 0; draw < 20; ++draw) {
      for (const auto& gradient : gradients) gradient.copy_(at::randn({kNumel}, generator, at::kDouble));
      all.push_back(checks());
    }
    return at::stack(all);
  };
  const auto in_forward = norms(forward);
  CHECK(at::equal(norms({forward.rbegin(), forward.rend()}), in_forward));
  CHECK(in_forward.select(1, 0).gt(kNumel).all().item<bool>());
}

TEST_CASE("[L03] on a device micro-batches add up, and AdamW and clipping see the CPU's gradients") {
  check_equal([](SmallTraining& training) { training.jobs.options.training.grad_accum_steps = 2; }, 2);
  check_equal([](SmallTraining& training) { training.optimizer.optimizer = "adamw"; }, 2);
  // The norm is added up in another order than on the CPU.
  check_equal([](SmallTraining& training) { training.jobs.options.training.clip_norm = 0.05; }, 2, 1e-6);
}

TEST_CASE("[L03] on a device the host waits once in a step, for the vote, and reads no value besides") {
  const std::int64_t steps = 12;
  const int ranks = GENERATE(1, 2);
  std::int64_t before = 0;
  int items = 0;
  const auto result = train_on(true, "ddp", ranks, [&](SmallTraining& training) {
    training.jobs.options.training.verify_every = 0;
    training.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t step) {
      if (system.compute().rank() != 0 || step != 2) return;
      before = host_waits();
      items = FakeDevice::items();
    };
    training.at_end = [&](RankSystem& system, Optimizer&) {
      system.compute().program_communicator().barrier("end");
      if (system.compute().rank() != 0) return;
      // Steps 2 to 11 of rank 0; the other rank may be up to one step ahead or behind where the count began.
      const auto waits = host_waits() - before;
      CHECK(waits >= ranks * (steps - 2) - 1);
      CHECK(waits <= ranks * (steps - 2) + 1);
      CHECK((FakeDevice::items() == items));
    };
  });
  CHECK(joined(result.errors) == "");
}

TEST_CASE("[T08] [L03] on a device the spans of a step are ranges of their threads, if a profiler shows them") {
  const auto work = [](SmallTraining& training) { training.steps = 3, training.seeds = true; };
  NotedRanges ranges;
  CHECK(joined(train_on(true, "ddp", 2, work).errors) == "");
  CHECK(ranges.calls() == 0);
  set_span_ranges(&ranges);
  CHECK(joined(train_on(true, "ddp", 2, work).errors) == "");
  set_span_ranges(nullptr);
  CHECK(ranges.balanced());
  for (const std::string step : {"0", "1", "2"}) {
    const auto within = "compute: / ProfilerStep#" + step;
    CHECK((ranges.count(within) == 2));  // ranks
    for (const std::string phase :
         {"forward", "backward", "wait for gradients", "wait for the device", "vote", "optimizer"})
      CHECK((ranges.count(within + " / " + phase) == 2));
  }
  CHECK((ranges.count("reducer: / BucketReady / all_reduce (bucket 0)") == 6));
}

TEST_CASE("[L03] a rank's device is the current one of the thread that its program runs on") {
  bool before = true;
  std::atomic<bool> chosen{false};
  auto cluster = ddp_cluster(1);
  cluster.options.device = FakeDevice::device();
  std::thread([&] {
    before = FakeDevice::is_chosen_here();
    check_no_errors(cluster.run([&](RankSystem&) { chosen = FakeDevice::is_chosen_here(); }));
  }).join();
  CHECK_FALSE(before);
  CHECK(chosen);
}

TEST_CASE(
    "[L03] on a device backward marks a bucket before the reducer's stream takes it, and the optimizer comes after the "
    "last") {
  std::vector<std::string> calls;
  const auto result = train_on(true, "ddp", 1, [&](SmallTraining& training) {
    training.steps = 4;
    training.before_step = [&](RankSystem&, torch::nn::Module&, std::int64_t step) {
      if (step == 3) calls.clear(), FakeDevice::forget();
    };
    training.at_end = [&](RankSystem&, Optimizer&) { calls = FakeDevice::calls(); };
  });
  REQUIRE(joined(result.errors) == "");
  // Alone there is no NCCL: what is left is compute (s0), the reducer (a stream of its own), and their events.
  std::string reducer;
  std::set<std::string> marked, reduced;
  for (const auto& call : calls) {
    const auto last = call.substr(call.rfind(' ') + 1), first = call.substr(0, call.find(' '));
    if (call.find(" marks s0") != std::string::npos) marked.insert(first);
    if (call.find(" waits for ") != std::string::npos && first != "s0") {
      CHECK(marked.count(last) == 1);  // what the reducer takes, backward has marked
      reducer = first;
    }
    if (call.find(" marks ") != std::string::npos && last != "s0") reduced.insert(first);
    if (call.rfind("s0 waits for ", 0) == 0) CHECK(reduced.count(last) == 1);
  }
  CHECK_FALSE(reducer.empty());
  CHECK(reduced.size() >= 2);
  CHECK(std::any_of(calls.begin(), calls.end(),
                    [](const std::string& call) { return call.rfind("s0 waits for ", 0) == 0; }));
}

TEST_CASE("[L03] on a device a loss that is not finite is found at the vote, and its rank named by all") {
  const auto result = train_on(true, "ddp", 2, [](SmallTraining& training) {
    training.before_step = [](RankSystem& system, torch::nn::Module& model, std::int64_t step) {
      if (step != 3 || system.compute().rank() != 1) return;
      at::NoGradGuard no_grad;
      model.named_parameters()["second.bias"].fill_(std::nan(""));
    };
  });
  REQUIRE((result.errors.size() == 2));
  for (const auto& error : result.errors)
    CHECK_THAT(error, Catch::StartsWith("rank 1, compute, step 3: vote: the loss is not finite"));
}

TEST_CASE("[T01] on a device a gradient that is not finite skips the step on all ranks, by name") {
  std::vector<StepReport> reports;
  std::mutex mutex;
  auto cluster = ddp_cluster(2);
  cluster.options.device = FakeDevice::device();
  cluster.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
  cluster.options.training.on_not_finite = "skip";
  const auto errors = cluster.run([&](RankSystem& system) {
    auto& compute = system.compute();
    const auto model = std::make_shared<DeviceMlpImpl>(*make_seeded<SmallMlpImpl>(1));
    compute.distribute(model);
    const auto optimizer = make_optimizer(OptimizerOptions{}, one_group(*model));
    const auto before = model->second->weight.detach().cpu().clone();
    const auto input = small_batch(0).first.to(FakeDevice::device());
    const auto loss = model->forward(input).square().mean();
    // Finite itself, its gradient is not: on rank 1 alone.
    const auto extra = (model->second->bias - model->second->bias.detach()).abs().sqrt().sum();
    compute.backward(compute.rank() == 1 ? loss + extra : loss, 16);
    const auto report = compute.step(*optimizer, 0.1);
    if (!torch::equal(before, model->second->weight.detach().cpu())) throw std::runtime_error("the step was applied");
    std::lock_guard lock(mutex);
    reports.push_back(report);
  });
  CHECK(joined(errors) == "");
  REQUIRE((reports.size() == 2));
  for (const auto& report : reports) {
    CHECK_FALSE(report.committed);
    CHECK_THAT(report.reason, Catch::Contains("the gradient of second.bias is not finite"));
  }
}

TEST_CASE(
    "[L03] a batch goes to the device on a stream of copies, and its user's stream waits for it, the host for "
    "nothing") {
  FakeDevice::reset();
  const auto waits = host_waits();
  const auto items = FakeDevice::items();
  const DeviceFeed feed(FakeDevice::device());
  Batch batch;
  batch.input = torch::randn({4, 3});
  batch.target = torch::arange(4);
  batch.named = {{"mask", torch::ones({4, 3})}};
  batch.index = torch::arange(4);
  FakeDevice::hold();  // the copy is not over
  const auto sent = feed.send(batch);
  CHECK((sent.input.device() == FakeDevice::device()));
  CHECK((sent.target.device() == FakeDevice::device()));
  CHECK((sent["mask"].device() == FakeDevice::device()));
  CHECK(sent.index.is_cpu());
  CHECK_FALSE(sent.arrived->done());
  DeviceFeed::receive(sent);
  CHECK((FakeDevice::calls() == std::vector<std::string>{"e1 marks s1", "s0 waits for e1", "s0 uses memory",
                                                         "s0 waits for e1", "s0 uses memory", "s0 waits for e1",
                                                         "s0 uses memory"}));
  CHECK((host_waits() == waits));
  CHECK((FakeDevice::items() == items));
  FakeDevice::release();
  CHECK(sent.arrived->done());
  CHECK(torch::equal(sent.input.cpu(), batch.input));
  CHECK(torch::equal(sent["mask"].cpu(), batch["mask"]));
  CHECK_NOTHROW(DeviceFeed::receive(batch));  // one that was not sent
}

namespace {

/// Notes on which device's behalf its memory is given back.
struct FreeingNccl final : troupe::test::ScriptedNccl {
  NcclResult free_memory(void* data) override {
    on_device = FakeDevice::is_chosen_here();
    return ScriptedNccl::free_memory(data);
  }
  std::atomic<bool> on_device{false};
};

}  // namespace

TEST_CASE("[L03] nccl: memory that a thread without a device drops is given back on its own device") {
  FakeDevice::reset();
  const auto api = std::make_shared<FreeingNccl>();
  CommunicatorOptions options;
  options.backend = "nccl";
  options.device = FakeDevice::device();
  options.nccl = api;
  NcclCommunicator communicator(options, nullptr);
  auto tensor = communicator.allocate(4, at::kFloat);
  std::thread([&] {
    CHECK_FALSE(FakeDevice::is_chosen_here());
    tensor = at::Tensor();
  }).join();
  CHECK(api->on_device);
}
