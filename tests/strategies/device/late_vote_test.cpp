// vote=late: the device decides whether a step is applied, and the host hears of it one step later. On the device that
// is none (see device_training_test.cpp): whatever the waiting vote does, this one does to the bit, and waits for
// nothing.
#include <c10/core/AutogradState.h>

#include <thread>

#include "actors/block/block.hpp"
#include "actors/strategy/saved_state.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/optimizer/torch_optimizer.hpp"
#include "tests/share.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using namespace troupe::testing;
using troupe::test::FakeDevice;

namespace {

struct LateLayerImpl : torch::nn::Module {
  LateLayerImpl(std::int64_t in, std::int64_t out)
      : weight(register_parameter(
            "weight", (torch::randn({out, in}) / std::sqrt(static_cast<double>(in))).to(FakeDevice::device()))),
        bias(register_parameter("bias", (torch::randn({out}) / 10).to(FakeDevice::device()))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(torch::nn::functional::linear(x, weight, bias)); }
  at::Tensor weight, bias;
};
TROUPE_BLOCK(LateLayer);

// With a buffer that forward changes: a step that is skipped must give it back.
struct LateNetImpl : torch::nn::Module {
  LateNetImpl()
      : first(register_module("first", LateLayer(8, 13))),
        second(register_module("second", LateLayer(13, 13))),
        head(register_module("head", std::make_shared<LateLayerImpl>(13, 3))),
        seen(register_buffer("seen", torch::zeros({2}).to(FakeDevice::device()))) {}
  at::Tensor forward(const at::Tensor& input) {
    const auto x = second(first(input));
    {
      at::NoGradGuard no_grad;
      seen.add_(x.detach().mean());
    }
    return head->forward(x);
  }
  LateLayer first, second;
  std::shared_ptr<LateLayerImpl> head;
  at::Tensor seen;
};

/// What went wrong on a rank in a step.
enum class Harm { none, loss, gradient, overflow };

struct LateRun {
  std::vector<StepReport> reports;  // of rank 0, by the step that they measure
  std::vector<std::string> errors;
  NamedTensors state;
};

struct LateTraining {
  std::string strategy = "ddp", vote = "late";
  int ranks = 2;
  std::int64_t steps = 8;
  OptimizerOptions optimizer;
  std::function<Harm(int rank, std::int64_t step)> harm = [](int, std::int64_t) { return Harm::none; };
  std::function<void(RankSystemOptions&)> change = [](RankSystemOptions&) {};
  std::function<void(RankSystem&, std::int64_t step)> before_step = [](RankSystem&, std::int64_t) {};
  std::function<void(RankSystem&)> at_end = [](RankSystem&) {};
  std::function<at::Tensor(at::Tensor loss, int rank, std::int64_t step)> loss_of = [](at::Tensor loss, int,
                                                                                       std::int64_t) { return loss; };
  std::function<std::unique_ptr<Optimizer>(torch::nn::Module&)> make;

  LateRun run() {
    FakeDevice::reset();
    SmallTraining setting(strategy, ranks);  // registers the strategies
    auto& cluster = setting.jobs;
    cluster.options.device = FakeDevice::device();
    cluster.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
    cluster.options.training.vote = vote;
    cluster.options.training.on_not_finite = "skip";
    cluster.options.training.verify_every = 0;
    change(cluster.options);
    LateRun result;
    std::mutex mutex;
    std::vector<TensorPart> parts;
    result.errors = cluster.run([&](RankSystem& system) { train(system, result, parts, mutex); });
    if (joined(result.errors).empty()) result.state = assemble(parts);
    return result;
  }

 private:
  void train(RankSystem& system, LateRun& result, std::vector<TensorPart>& parts, std::mutex& mutex) {
    // As in device_sharded_test.cpp: one thread for a device's backwards would wait for a unit of the others.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    auto& compute = system.compute();
    const auto model = make_seeded<LateNetImpl>(5);
    compute.distribute(model);
    const auto made = make ? make(*model) : make_optimizer(optimizer, one_group(*model));
    const auto keep = [&](const StepReport& report) {
      std::lock_guard lock(mutex);
      if (compute.rank() == 0 && report.measured_step >= 0) result.reports.push_back(report);
    };
    const auto micro = system.options().training.grad_accum_steps;
    for (std::int64_t step = 0; step < steps; ++step) {
      before_step(system, step);
      const auto [input, target] = small_batch(step);
      const auto part = input.size(0) / micro / compute.world_size();
      for (std::int64_t m = 0; m < micro; ++m) {
        const auto begin = (m * compute.world_size() + compute.rank()) * part;
        const auto output = model->forward(input.narrow(0, begin, part).to(FakeDevice::device()));
        auto loss =
            torch::nn::functional::cross_entropy(output, target.narrow(0, begin, part).to(FakeDevice::device()));
        const auto zero = output.sum() - output.sum().detach();
        switch (m == 0 ? harm(compute.rank(), step) : Harm::none) {
          case Harm::none: break;
          case Harm::loss:
            loss = loss + std::numeric_limits<double>::infinity();
            break;                                                      // its gradients know nothing of that
          case Harm::gradient: loss = loss + zero.abs().sqrt(); break;  // finite itself
          case Harm::overflow: loss = loss + zero * 1e36; break;        // ... and only times the loss scale
        }
        compute.backward(loss_of(loss, compute.rank(), step), static_cast<double>(part), 1);
      }
      keep(compute.step(*made, 0.05));
    }
    at_end(system);
    if (const auto& last = compute.settle()) keep(*last);
    auto mine = compute.strategy().saved_state().state_parts(*made, compute.rank(), compute.world_size());
    for (auto& part : mine) part.pieces.assign(1, values_of(part).clone());
    std::lock_guard lock(mutex);
    for (auto& part : mine) parts.push_back(std::move(part));
  }
};

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void check_as_waiting(LateTraining training) {
  training.vote = "step";
  const auto waiting = training.run();
  training.vote = "late";
  const auto late = training.run();
  REQUIRE(joined(waiting.errors) == "");
  REQUIRE(joined(late.errors) == "");
  REQUIRE(static_cast<std::int64_t>(late.reports.size()) == training.steps);
  REQUIRE((late.reports.size() == waiting.reports.size()));
  for (std::size_t s = 0; s < late.reports.size(); ++s) {
    const auto &a = waiting.reports[s], &b = late.reports[s];
    INFO("step " << s << ": " << a.reason << " / " << b.reason);
    CHECK((b.measured_step == static_cast<std::int64_t>(s)));
    CHECK(a.committed == b.committed);
    CHECK(same(a.loss, b.loss));
    CHECK(same(a.max_loss, b.max_loss));
    CHECK(a.samples == b.samples);
    CHECK(a.correct == b.correct);
    if (a.committed) CHECK(a.gradient_norm == b.gradient_norm);  // else a loss that is not finite has made it so
    CHECK(a.loss_scale == b.loss_scale);
    CHECK(a.reason.empty() == b.reason.empty());
  }
  CHECK(late.state.size() > 5);
  CHECK(largest_difference(waiting.state, late.state) == 0);
  for (const auto& [name, tensor] : late.state) CHECK(tensor.to(at::kDouble).isfinite().all().item<bool>());
}

const std::vector<std::string> kStrategies = {"ddp", "zero1", "zero2", "fsdp full_shard", "fsdp hybrid_shard"};

std::size_t skipped(const LateRun& run) {
  return static_cast<std::size_t>(std::count_if(run.reports.begin(), run.reports.end(),
                                                [](const StepReport& report) { return !report.committed; }));
}

}  // namespace

TEST_CASE("[L03] [T01] with a late vote losses, norms and weights are those of the waiting one, skipped steps too") {
  LateTraining training;
  training.strategy = GENERATE(from_range(kStrategies));
  training.ranks = GENERATE(1, 2);
  training.optimizer.optimizer = GENERATE("sgd", "adamw");
  training.optimizer.momentum = 0.9;
  const double clip = GENERATE(0.0, 0.05);
  const auto what = training.strategy + " on " + std::to_string(training.ranks) + ", " + training.optimizer.optimizer +
                    ", clip " + std::to_string(clip);
  if (!testing::in_share(0.3, what)) return;
  INFO(what);
  training.change = [clip](RankSystemOptions& options) {
    options.training.clip_norm = clip;
    options.strategy.fsdp_shard_size = 1;
  };
  SECTION("nothing goes wrong") { check_as_waiting(training); }
  SECTION("one rank's loss, then another's gradient is not finite, the first step's too") {
    training.harm = [last = training.ranks - 1](int rank, std::int64_t step) {
      if (rank == last && (step == 0 || step == 4)) return Harm::loss;
      return rank == 0 && step == 2 ? Harm::gradient : Harm::none;
    };
    check_as_waiting(training);
    CHECK(skipped(training.run()) == 3);
  }
}

TEST_CASE("[L03] with a late vote micro-batches add up as they do with the waiting one") {
  LateTraining training;
  training.strategy = GENERATE("ddp", "zero2");
  training.change = [](RankSystemOptions& options) {
    options.training.grad_accum_steps = 2;
    options.training.clip_norm = 0.05;
  };
  training.harm = [](int rank, std::int64_t step) { return rank == 1 && step == 3 ? Harm::gradient : Harm::none; };
  check_as_waiting(training);
}

TEST_CASE("[T01] with a late vote the loss scale on the device is the host's, one step ahead of it") {
  LateTraining training;
  training.strategy = GENERATE("ddp", "fsdp full_shard");
  const double clip = GENERATE(0.0, 0.05);
  training.steps = 10;
  training.optimizer.momentum = 0.9;
  training.change = [clip](RankSystemOptions& options) {
    options.training.loss_scaler = "on";
    options.training.loss_scale_init = 4096;
    options.training.loss_scale_interval = 2;
    options.training.clip_norm = clip;
  };
  // Two in a row: what the second step's loss is multiplied by is known to the device alone.
  training.harm = [](int rank, std::int64_t step) {
    return rank == 1 && (step == 3 || step == 4) ? Harm::overflow : Harm::none;
  };
  check_as_waiting(training);
  const auto late = training.run();
  std::vector<double> scales;
  for (const auto& report : late.reports) scales.push_back(report.loss_scale);
  CHECK((scales == std::vector<double>{4096, 4096, 8192, 8192, 4096, 2048, 2048, 4096, 4096, 8192}));
  CHECK(skipped(late) == 2);
}

TEST_CASE("[L03] with a late vote the host waits for the device in no step, and reads no value") {
  LateTraining training;
  training.strategy = GENERATE("ddp", "zero1", "fsdp full_shard");
  training.ranks = GENERATE(1, 2);
  std::int64_t before = 0;
  int items = 0;
  training.before_step = [&](RankSystem& system, std::int64_t step) {
    if (step != 2) return;
    system.compute().program_communicator().barrier("count");  // so that no rank is in an earlier step
    if (system.compute().rank() == 0) before = host_waits(), items = FakeDevice::items();
    system.compute().program_communicator().barrier("count");
  };
  training.at_end = [&](RankSystem& system) {
    system.compute().program_communicator().barrier("end");
    CHECK((host_waits() == before));
    CHECK((FakeDevice::items() == items));
    system.compute().program_communicator().barrier("end");
  };
  CHECK(joined(training.run().errors) == "");
}

TEST_CASE(
    "[L03] with a late vote a step is launched, optimizer and all, while nothing of it is over, and the next one's "
    "vote waits for it") {
  LateTraining training;
  training.strategy = GENERATE("ddp", "fsdp full_shard");
  training.ranks = 1;
  std::int64_t held = -1, waited_in = -1;
  std::thread releaser;
  training.before_step = [&](RankSystem&, std::int64_t step) {
    if (step == 3) FakeDevice::hold(), held = host_waits();
    if (step == 4) {
      CHECK((host_waits() == held));  // step 3 has been launched whole
      releaser = std::thread([&] {
        while (host_waits() == held) std::this_thread::yield();
        FakeDevice::release();
      });
    }
    if (step == 5) waited_in = host_waits() - held;
  };
  const auto run = training.run();
  if (releaser.joinable()) releaser.join();
  CHECK(joined(run.errors) == "");
  CHECK((run.reports.size() == 8));
  CHECK((waited_in == 1));
}

TEST_CASE(
    "[L03] with a late vote a loss that is not finite ends the job one step later, by the rank and the step that it "
    "was in") {
  LateTraining training;
  const std::int64_t step = GENERATE(3, 7);  // 7 is the last one, which settle looks after
  training.harm = [step](int rank, std::int64_t at) { return rank == 1 && at == step ? Harm::loss : Harm::none; };
  training.change = [](RankSystemOptions& options) { options.training.on_not_finite = "stop"; };
  std::atomic<std::int64_t> begun{-1};
  training.before_step = [&](RankSystem&, std::int64_t at) { begun = at; };
  const auto run = training.run();
  REQUIRE((run.errors.size() == 2));
  for (const auto& error : run.errors)
    CHECK_THAT(error,
               Catch::StartsWith("rank 1, compute, step " + std::to_string(step) + ": vote: the loss is not finite"));
  CHECK((begun == std::min<std::int64_t>(step + 1, 7)));
}

namespace {

// Backward passes on a gradient of its own, whatever came from the loss.
struct Stubborn : torch::autograd::Function<Stubborn> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& loss) {
    return loss * std::numeric_limits<double>::infinity();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {at::ones_like(gradients[0])};
  }
};

}  // namespace

TEST_CASE(
    "[L03] with a late vote a loss that is not finite and whose gradients are ends the job, since the step has been "
    "applied") {
  LateTraining training;
  training.loss_of = [](const at::Tensor& loss, int rank, std::int64_t step) {
    return rank == 0 && step == 2 ? Stubborn::apply(loss) : loss;
  };
  for (const auto& error : training.run().errors) {
    CHECK_THAT(error, Catch::StartsWith("rank 0, compute, step 2: vote: the loss is not finite"));
    CHECK_THAT(error, Catch::Contains("had been applied before the vote"));
  }
}

TEST_CASE("[L03] a late vote is refused where something needs to wait, by what that is") {
  LateTraining training;
  training.steps = 1;
  std::string wanted;
  SECTION("a job that outlives the loss of a rank") {
    training.change = [](RankSystemOptions& options) {
      options.reconnect = [](auto, const auto&) { return caf::strong_actor_ptr(); };
    };
    wanted = "vote: late: a step is applied before the ranks have voted on it";
  }
  SECTION("shards in the host's memory") {
    training.strategy = "fsdp full_shard";
    training.change = [](RankSystemOptions& options) { options.strategy.fsdp_cpu_offload = true; };
    wanted = "vote: late: strategy fsdp with fsdp_cpu_offload has the optimizer in the host's memory";
  }
  SECTION("replicas that differ") {
    training.strategy = "local_sgd";
    wanted = "vote: late: strategy local_sgd has replicas that differ";
  }
  SECTION("an optimizer of torch::optim") {
    std::vector<std::shared_ptr<torch::optim::Optimizer>> theirs;
    std::mutex mutex;
    training.make = [&](torch::nn::Module& model) {
      std::lock_guard lock(mutex);
      theirs.push_back(std::make_shared<torch::optim::SGD>(model.parameters(), 0.1));
      return std::make_unique<TorchOptimizer>(*theirs.back(), model);
    };
    const auto run = training.run();
    CHECK_THAT(joined(run.errors), Catch::Contains("vote: late: the optimizer torch::optim must know on the host"));
    return;
  }
  SECTION("a loss on the CPU") {
    training.loss_of = [](const at::Tensor& loss, int, std::int64_t) { return loss.cpu(); };
    wanted = "vote: late: the loss is on the CPU";
  }
  const auto run = training.run();
  CHECK_THAT(joined(run.errors), Catch::Contains(wanted));
}

TEST_CASE("[L03] with a job whose launcher was told --no-recovery a late vote is taken") {
  LateTraining training;
  training.change = [](RankSystemOptions& options) {
    options.reconnect = [](auto, const auto&) { return caf::strong_actor_ptr(); };
    options.recovery = false;
  };
  CHECK(joined(training.run().errors) == "");
}
