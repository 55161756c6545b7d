// A rank whose device has no memory left: what it says, and what the others hear. The allocator fails when the test
// tells it to (tests/support/fake_device.hpp).
#include <c10/core/AutogradState.h>

#include "actors/block/block.hpp"
#include "tensor_io/memory/memory_shortage.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/limited_nccl.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using namespace troupe::testing;
using troupe::test::FakeDevice;

namespace {

constexpr std::int64_t kMuch = 2 << 20;

struct HungryLayerImpl : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", torch::randn({8, 8}).to(FakeDevice::device()));
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(x.matmul(weight)); }
};
TROUPE_BLOCK(HungryLayer);

enum class Place { forward, backward, optimizer };

struct HungryModelImpl : torch::nn::Module {
  HungryLayer first = register_module("first", HungryLayer());
  HungryLayer second = register_module("second", HungryLayer());
  at::Tensor forward(const at::Tensor& input) {
    const auto hidden = first(input);
    if (eats == Place::forward) eat();
    if (eats == Place::backward) {
      hidden.register_hook([](const at::Tensor& gradient) {
        eat();
        return gradient;
      });
    }
    return second(hidden);
  }
  static void eat() {
    FakeDevice::fail_allocation(kMuch);
    (void)at::empty({kMuch}, at::TensorOptions().dtype(at::kByte).device(FakeDevice::device()));
  }
  std::optional<Place> eats;
};

// One whose step takes memory.
class HungryOptimizer final : public Optimizer {
 public:
  explicit HungryOptimizer(std::unique_ptr<Optimizer> own) : own_(std::move(own)) {}
  std::string name() const override { return own_->name(); }
  void step(double lr) override {
    if (eats) HungryModelImpl::eat();
    own_->step(lr);
  }
  NamedTensors state() override { return own_->state(); }
  void load_state(const NamedTensors& state) override { own_->load_state(state); }
  const std::vector<ParameterGroup>& groups() const override { return own_->groups(); }
  void replace_parameters(const Replacement& replacement) override { own_->replace_parameters(replacement); }
  void restore_parameters() override { own_->restore_parameters(); }
  bool eats = false;

 private:
  std::unique_ptr<Optimizer> own_;
};

// Rank 1 of 2 runs out of memory in step 3. By rank: what it ended with.
std::vector<std::string> starve(const std::string& strategy, Place place) {
  FakeDevice::reset();
  SmallTraining training(strategy, 2);
  auto& cluster = training.jobs;
  cluster.options.device = FakeDevice::device();
  cluster.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
  cluster.options.strategy.fsdp_mapped = false;
  OptimizerOptions adamw;
  adamw.optimizer = "adamw";
  return cluster.run([&](RankSystem& system) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    auto& compute = system.compute();
    const auto model = std::make_shared<HungryModelImpl>();
    compute.distribute(model);
    HungryOptimizer optimizer(make_optimizer(adamw, one_group(*model)));
    for (int step = 0; step < 6; ++step) {
      const auto input = small_batch(step).first.to(FakeDevice::device());
      compute.seed_forward();
      if (compute.rank() == 1 && step == 3) {
        model->eats = place;
        optimizer.eats = place == Place::optimizer;
      }
      compute.backward(model->forward(input).square().mean(), 16);
      compute.step(optimizer, 0.01);
    }
  });
}

// A few steps on two ranks.
std::vector<std::string> train_limited() {
  SmallTraining training("ddp", 2);
  auto& cluster = training.jobs;
  cluster.options.device = FakeDevice::device();
  cluster.options.nccl = std::make_shared<troupe::test::LimitedNccl>();
  return cluster.run([&](RankSystem& system) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    auto& compute = system.compute();
    const auto model = std::make_shared<HungryModelImpl>();
    compute.distribute(model);
    const auto optimizer = make_optimizer(OptimizerOptions{}, one_group(*model));
    for (int step = 0; step < 4; ++step) {
      compute.seed_forward();
      compute.backward(model->forward(small_batch(step).first.to(FakeDevice::device())).square().mean(), 16);
      compute.step(*optimizer, 0.01);
    }
  });
}

void check_told(const std::vector<std::string>& errors, const std::vector<std::string>& held) {
  REQUIRE((errors.size() == 2));
  INFO(errors[0]);
  INFO(errors[1]);
  CHECK_THAT(errors[1],
             Catch::StartsWith(
                 "rank 1, compute, step 3: out of memory: 2.00 MiB asked for on fake:0, which has 1.00 MiB free of "
                 "1.00 GiB; this process's tensors take "));
  CHECK_THAT(errors[1], Catch::Contains("; the largest: 2 x 300 KiB, 100 KiB (stream 2); Troupe holds: "));
  for (const auto& part : held) CHECK_THAT(errors[1], Catch::Contains(part));
  CHECK_THAT(
      errors[1],
      Catch::Contains("lower batch_size, raise grad_accum_steps, set activation_checkpointing, or shard the model "
                      "(--strategy fsdp, and with it --fsdp_cpu_offload true)"));
  CHECK(std::count(errors[1].begin(), errors[1].end(), '\n') == 0);
  // The other one does not wait for ever, and says who.
  CHECK_THAT(errors[0], Catch::Contains("rank 1, compute, step 3: out of memory: 2.00 MiB asked for on fake:0"));
}

}  // namespace

TEST_CASE(
    "[L05] a rank whose device has no memory left aborts its step, says what holds it, and the others hear who it "
    "was") {
  const auto place = GENERATE(Place::forward, Place::backward);
  // 2 x 8 x 8 f32, their gradients, and two moments of each.
  check_told(starve("ddp", place), {"parameters 512 bytes", "gradient buckets ", "optimizer state "});
  check_told(starve("fsdp full_shard", place), {"parameter shards ", "gradient shards ", "optimizer state "});
}

TEST_CASE("[L05] a device without memory for the optimizer's step ends the job with the same report") {
  const auto errors = starve("ddp", Place::optimizer);
  REQUIRE((errors.size() == 2));
  CHECK_THAT(errors[1], Catch::StartsWith("rank 1, compute, step 3: out of memory: 2.00 MiB asked for on fake:0"));
  CHECK_THAT(errors[0], Catch::Contains("rank 1, compute, step 3: out of memory: 2.00 MiB asked for on fake:0"));
}

TEST_CASE("[L05] a device without memory for a unit that is gathered ends the job with the same report") {
  FakeDevice::reset();
  SmallTraining training("fsdp full_shard", 2);
  auto& cluster = training.jobs;
  cluster.options.device = FakeDevice::device();
  cluster.options.nccl = std::make_shared<troupe::test::ThreadNccl>();
  const auto errors = cluster.run([&](RankSystem& system) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    auto& compute = system.compute();
    const auto model = std::make_shared<HungryModelImpl>();
    compute.distribute(model);
    const auto optimizer = make_optimizer(OptimizerOptions{}, one_group(*model));
    compute.program_communicator().barrier("distributed");
    if (compute.rank() == 0)
      FakeDevice::fail_allocation(1, 100);  // gathers are in streams of high priority: one of the two ranks'
    compute.program_communicator().barrier("hungry");
    compute.seed_forward();
    compute.backward(model->forward(small_batch(0).first.to(FakeDevice::device())).square().mean(), 16);
    compute.step(*optimizer, 0.01);
  });
  REQUIRE((errors.size() == 2));
  const int hungry = errors[1].starts_with("rank 1, compute, step 0: out of memory: ") ? 1 : 0;
  const auto report = "rank " + std::to_string(hungry) + ", compute, step 0: out of memory: ";
  CHECK_THAT(errors[static_cast<std::size_t>(hungry)],
             Catch::StartsWith(report) && Catch::Contains("asked for on fake:0") && Catch::Contains("Troupe holds: "));
  CHECK_THAT(errors[static_cast<std::size_t>(1 - hungry)], Catch::Contains(report));
}

TEST_CASE("[L03] buckets find the memory that LibTorch keeps for later") {
  FakeDevice::reset();
  constexpr std::int64_t kRoom = 1 << 20;
  FakeDevice::limit_memory(FakeDevice::bytes() + kRoom);
  (void)at::empty({kRoom}, at::TensorOptions().dtype(at::kByte).device(FakeDevice::device()));  // and given back
  CHECK(joined(train_limited()) == "");
  FakeDevice::reset();
}

TEST_CASE("[L03] the most that a device's tensors ever held is known, and nothing of the CPU") {
  FakeDevice::reset();
  const auto before = FakeDevice::bytes();
  (void)at::empty({1 << 20}, at::TensorOptions().dtype(at::kByte).device(FakeDevice::device()));
  const auto peak = device_memory_peak(FakeDevice::device());
  CHECK(peak.active >= before + (1 << 20));
  CHECK(peak.reserved == 2 * peak.active);
  CHECK(device_memory_peak(at::kCPU).active == 0);
}
