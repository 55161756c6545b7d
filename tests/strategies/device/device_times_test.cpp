// Where a device's time goes, on a device whose streams' clocks the test moves on (tests/support/fake_device.hpp).
#include "actors/compute/device_times.hpp"
#include "actors/block/block.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

#include <c10/core/AutogradState.h>

using namespace troupe;
using namespace troupe::testing;
using troupe::test::FakeDevice;

namespace {

using Part = DeviceTimes::Part;

// A collective of so many ms on each bucket.
class SlowAverage final : public CommHook {
 public:
  explicit SlowAverage(double ms) : ms_(ms) {}
  void reduce(BucketView& bucket, Communicator& communicator) override {
    communicator.all_reduce(bucket.flat, ReduceOp::avg, bucket.label);
    FakeDevice::work(ms_);
  }

 private:
  double ms_;
};

at::Tensor parameter_on_device(at::IntArrayRef sizes) { return torch::randn(sizes).to(FakeDevice::device()); }

// Two layers, the second of which has its gradients first; forward takes 10 ms, and backward 1,000 between the two.
struct TimedPairImpl : torch::nn::Module {
  at::Tensor first = register_parameter("first", parameter_on_device({8, 8}));
  at::Tensor second = register_parameter("second", parameter_on_device({8, 8}));
  at::Tensor forward(const at::Tensor& input) {
    FakeDevice::work(10);
    const auto hidden = torch::tanh(input.matmul(first));
    hidden.register_hook([](const at::Tensor& gradient) {
      FakeDevice::work(1000);
      return gradient;
    });
    return hidden.matmul(second);
  }
};

std::vector<StepReport> train_pair(int steps, const std::function<void(Compute&, int)>& before_step = {}) {
  static const bool registered = [] {
    register_comm_hook("slow_average", [](const StrategyOptions&) { return std::make_shared<SlowAverage>(5); });
    return true;
  }();
  (void)registered;
  FakeDevice::reset();
  auto cluster = ddp_cluster(1);
  cluster.options.device = FakeDevice::device();
  cluster.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
  cluster.options.strategy.comm_hook = "slow_average";
  cluster.options.strategy.bucket_cap_mb = cluster.options.strategy.first_bucket_mb = 1e-4;
  std::vector<StepReport> reports;
  const auto errors = cluster.run([&](RankSystem& system) {
    auto& compute = system.compute();
    const auto model = std::make_shared<TimedPairImpl>();
    compute.distribute(model);
    const auto optimizer = make_optimizer(OptimizerOptions{}, one_group(*model));
    for (int step = 0; step < steps; ++step) {
      compute.seed_forward();
      const auto loss = model->forward(small_batch(step).first.to(FakeDevice::device())).square().mean();
      compute.backward(loss, 16);
      if (before_step) before_step(compute, step);
      reports.push_back(compute.step(*optimizer, 0.01));
    }
  });
  CHECK(joined(errors) == "");
  return reports;
}

}  // namespace

TEST_CASE("[L03] on a device what is exposed, reduced and a rank's own is by the device's clock") {
  const auto reports = train_pair(4);
  REQUIRE((reports.size() == 4));
  for (const auto& report : reports) {
    // The second layer's bucket is reduced within the 1,000 ms, the first one's after them.
    CHECK((report.buckets == 2));
    CHECK(report.reduce_ms == Approx(10));
    CHECK(report.inside_ms == 0);
    REQUIRE((report.own.size() == 1));
    CHECK(report.own[0].forward_ms == Approx(10));
    CHECK(report.own[0].backward_ms == Approx(1000));
    CHECK(report.exposed_ms == Approx(5));  // a lone rank's vote is no wait for another
  }
}

TEST_CASE("[L03] a device's times cost no wait: what is not over comes with a later step") {
  FakeDevice::reset();
  const auto waits = host_waits();
  const auto compute = DeviceStream::current(FakeDevice::device());
  const auto reducer = DeviceStream::from_pool(FakeDevice::device(), false);
  DeviceTimer timer;
  DeviceTimes times;
  times.reset(FakeDevice::device());
  const auto run_step = [&](double forward, double waited, double backward, double reduction) {
    times.begin_section();
    FakeDevice::work(forward);
    const auto arrived = timer.mark(compute);
    FakeDevice::work(waited);
    times.end_section(Part::forward, {{arrived, timer.mark(compute)}});
    const auto ready = timer.mark(compute);
    FakeDevice::work(backward);
    times.end_section(Part::backward, {});
    times.end_backward();
    const CurrentStream place(reducer);
    reducer.wait(*ready);
    const auto begun = timer.mark(reducer);
    FakeDevice::work(reduction);
    times.end_reduction({{begun, timer.mark(reducer)}}, {});
  };
  run_step(3, 2, 10, 14);
  const auto first = times.take();
  CHECK((first.steps == 1));
  CHECK(first.forward == Approx(3));
  CHECK(first.inside == Approx(2));
  CHECK(first.backward == Approx(10));
  CHECK(first.reduce == Approx(14));
  CHECK(first.exposed == Approx(4));

  FakeDevice::hold();
  run_step(5, 0, 10, 1);  // its reduction is over long before backward: nothing is exposed
  CHECK((times.take().steps == 0));
  run_step(7, 0, 10, 30);
  CHECK((times.take().steps == 0));
  FakeDevice::release();
  const auto late = times.take();
  CHECK((late.steps == 2));
  CHECK(late.forward == Approx(12));
  CHECK(late.reduce == Approx(31));
  CHECK(late.exposed == Approx(20));
  CHECK((times.take().steps == 0));
  CHECK((host_waits() == waits));
}

TEST_CASE("[L03] a device's timed events are made once and used again") {
  FakeDevice::reset();
  const auto count = [] {
    std::set<std::string> events;
    for (const auto& call : FakeDevice::calls()) {
      if (call.find(" marks ") != std::string::npos) events.insert(call.substr(0, call.find(' ')));
    }
    return events.size();
  };
  std::size_t after_four = 0;
  train_pair(12, [&](Compute&, int step) {
    if (step == 4) after_four = count();
    if (step == 11) CHECK((count() - after_four <= 7));  // wait_on_host makes one for each step's wait
  });
  CHECK((after_four > 0));
}

namespace {

struct TimedLayerImpl : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", parameter_on_device({8, 8}));
  double ms = 0;  // of its forward
  at::Tensor forward(const at::Tensor& x) {
    FakeDevice::work(ms);
    return torch::tanh(x.matmul(weight));
  }
};
TROUPE_BLOCK(TimedLayer);

struct TimedStackImpl : torch::nn::Module {
  std::vector<TimedLayer> layers;
  TimedStackImpl() {
    for (int i = 0; i < 4; ++i) layers.emplace_back(register_module("layer" + std::to_string(i), TimedLayer()));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
};

struct Gathered {
  double inside = 0, exposed = 0, reduce = 0, copying = 0, reducing = 0;
};

// fsdp of one rank, whose gathers are copies of 4 ms and whose reductions are copies of 1; each layer's forward takes
// `ms`.
Gathered gather_while_computing(double ms) {
  FakeDevice::reset();
  SmallTraining training("fsdp shard_grad_op", 1);
  auto& cluster = training.jobs;
  cluster.options.device = FakeDevice::device();
  cluster.options.strategy.fsdp_mapped = false;
  cluster.options.strategy.fsdp_prefetch = 8;
  cluster.options.training.snapshot_every = 0;
  Gathered found;
  const auto errors = cluster.run([&](RankSystem& system) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    auto& compute = system.compute();
    const auto model = std::make_shared<TimedStackImpl>();
    for (auto& layer : model->layers) layer->ms = ms;
    compute.distribute(model);
    const auto optimizer = make_optimizer(OptimizerOptions{}, one_group(*model));
    for (int step = 0; step < 4; ++step) {
      if (step == 3) FakeDevice::copies_take(4, 100);  // gathers are in a stream of high priority
      const auto input = small_batch(step).first.to(FakeDevice::device());
      compute.seed_forward();
      compute.backward(model->forward(input).square().mean(), 16);
      const auto report = compute.step(*optimizer, 0.01);
      if (step == 3) found = {report.inside_ms, report.exposed_ms, report.reduce_ms, FakeDevice::copying_ms(100), 0};
    }
  });
  CHECK(joined(errors) == "");
  return found;
}

}  // namespace

TEST_CASE("[L03] sharded on a device, of a gather that is exposed which compute's stream waited for") {
  const auto idle = gather_while_computing(0);
  CHECK(idle.copying == Approx(4 * 4));
  CHECK(idle.inside == Approx(idle.copying));  // nothing to hide behind
  const auto busy = gather_while_computing(3);
  CHECK(busy.inside ==
        Approx(4 + 1 + 1 + 1));  // the first one, and of each other one what is longer than a layer's forward
  const auto busier = gather_while_computing(5);
  CHECK(busier.inside == Approx(4));
}

TEST_CASE("[L03] [X06] on a device a rank that needs longer for a sample gets fewer of them, by the device's clock") {
  FakeDevice::reset();
  Config config;
  config.strategy = "ddp";
  config.balance = "speed";
  config.batch_size = 16;
  config.max_steps = 40;
  config.epochs = 100;
  config.run_dir = config.checkpoint_dir = "";
  config.save_every = -1;
  config.validate_every = 0;
  config.ranks = 2;
  auto simulation = simulation_of(config);
  simulation.rank.device = FakeDevice::device();
  simulation.rank.nccl = std::make_shared<troupe::test::ThreadNccl>();
  std::mutex mutex;
  std::map<std::int64_t, std::map<int, std::int64_t>> samples;  // by step and rank
  std::string errors;
  const auto data = std::make_shared<TensorDataset>(torch::randn({160, 8}), torch::zeros({160}, torch::kLong));
  run_simulation(
      config, simulation,
      [&](Rank& rank) {
        c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
        const CurrentStream own(DeviceStream::from_pool(FakeDevice::device(), false));  // the ranks share the device
        const auto model = rank.distribute([] { return std::make_shared<TimedLayerImpl>(); });
        const auto optimizer = rank.make_optimizer(*model);
        for (const auto& batch : rank.loader(data)) {
          {
            std::lock_guard lock(mutex);
            samples[rank.steps_done()][rank.rank()] = batch.numel();
          }
          model->ms = static_cast<double>(batch.numel() * (rank.rank() == 1 ? 3 : 1));
          rank.backward(model->forward(batch.input).square().mean());
          rank.step(*optimizer);
        }
      },
      [&](int, const ErrorReport& report) { errors += report.to_string(); });
  CHECK(errors == "");
  REQUIRE((samples.size() == 40));
  CHECK((samples.at(0) == std::map<int, std::int64_t>{{0, 8}, {1, 8}}));
  CHECK((samples.at(39) == std::map<int, std::int64_t>{{0, 12}, {1, 4}}));
}
