// PowerSGD on a device, without one: see device_training_test.cpp. By other operators than on the CPU, so compared with
// a tolerance.
#include <c10/core/AutogradState.h>

#include <limits>

#include "strategies/hooks/comm_hooks.hpp"
#include "strategies/hooks/device_power_sgd.hpp"
#include "strategies/hooks/power_sgd.hpp"
#include "strategies/hooks/power_sgd_kernels.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using troupe::test::FakeDevice;
using troupe::test::max_difference;
using troupe::test::pattern;
using troupe::test::require;

namespace {

/// Copies of these tensors on a device, each at 64 bytes and in its own strides.
BucketView bucket_there(const std::vector<at::Tensor>& tensors, std::int64_t step, c10::Device device) {
  BucketView bucket;
  bucket.label = "bucket 0";
  bucket.step = step;
  std::int64_t numel = 0, begin = 0;
  for (const auto& tensor : tensors) numel += (tensor.numel() + 31) / 32 * 32;
  bucket.flat = at::zeros({numel}, tensors[0].options().device(device));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bucket.gradients.push_back(
        bucket.flat.narrow(0, begin, tensors[i].numel()).as_strided(tensors[i].sizes(), tensors[i].strides()));
    bucket.gradients.back().copy_(tensors[i]);
    bucket.names.push_back("p" + std::to_string(i));
    begin += (tensors[i].numel() + 31) / 32 * 32;
  }
  return bucket;
}

/// Rank r's gradients of a step: matrices of full rank, one of them of one column less than the hook's rank, a vector,
/// a tiny matrix.
std::vector<at::Tensor> gradients_of(int rank, std::int64_t step, at::ScalarType dtype = at::kFloat) {
  const auto factor = static_cast<double>(step + 2);
  return {at::sin(pattern({40, 30}, 3 * rank + 1) * factor).to(dtype), pattern({50}, rank + 2).to(dtype),
          pattern({3, 2}, rank + 5).to(dtype),
          at::cos(pattern({16, 4, 3, 3}, 2 * rank + 7) * factor).contiguous(at::MemoryFormat::ChannelsLast).to(dtype),
          at::sin(pattern({1000, 3}, 5 * rank + 2) * factor).to(dtype)};
}

/// What the hook made of `steps` steps, by rank: all flats and its state at the end, on the host.
std::vector<std::vector<at::Tensor>> reduced_there(
    bool on_device, int ranks, std::int64_t steps, at::ScalarType dtype = at::kFloat,
    const std::function<void(PowerSgd&, std::int64_t)>& before_step = {}) {
  FakeDevice::reset();
  std::vector<std::vector<at::Tensor>> results(static_cast<std::size_t>(ranks));
  test::Backend backend{on_device ? "nccl" : "shm", on_device ? "auto" : "shm"};
  if (on_device) {
    backend.nccl = std::make_shared<test::ThreadNccl>();
    backend.device = FakeDevice::device();
  }
  test::run_ranks({backend, ranks}, [&](Communicator& communicator) {
    auto& result = results[static_cast<std::size_t>(communicator.rank())];
    PowerSgd hook(4, 0);
    for (std::int64_t step = 0; step < steps; ++step) {
      if (before_step) before_step(hook, step);
      auto bucket = bucket_there(gradients_of(communicator.rank(), step, dtype), step, communicator.device());
      hook.reduce(bucket, communicator);
      result.push_back(bucket.flat.cpu().to(at::kFloat).clone());
    }
    for (const auto& [name, tensor] : hook.state()) result.push_back(tensor.cpu().clone());
  });
  return results;
}

void check_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double tolerance) {
  REQUIRE((a.size() == b.size()));
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(max_difference(a[i], b[i]) < tolerance);
}

}  // namespace

TEST_CASE("[D10] [L03] PowerSGD reduces on a device what it does on the CPU, the same bits on all ranks") {
  const int ranks = GENERATE(1, 2, 3);
  const auto cpu = reduced_there(false, ranks, 5), device = reduced_there(true, ranks, 5);
  for (int r = 0; r < ranks; ++r) {
    check_close(device[static_cast<std::size_t>(r)], cpu[static_cast<std::size_t>(r)], 1e-4);
    for (std::size_t step = 0; step < 5; ++step)
      CHECK(at::equal(device[static_cast<std::size_t>(r)][step], device[0][step]));
  }
  const auto half_cpu = reduced_there(false, ranks, 2, at::kBFloat16),
             half = reduced_there(true, ranks, 2, at::kBFloat16);
  check_close(half[0], half_cpu[0], 0.05);
}

TEST_CASE("[D10] [L03] on a device columns become orthonormal, and those that depend on others zero, as on the CPU") {
  FakeDevice::reset();
  auto dependent = pattern({64, 4}, 3);
  dependent.select(1, 2).copy_(dependent.select(1, 0) * 2 - dependent.select(1, 1));
  auto nothing = pattern({20, 3}, 5);
  nothing.select(1, 1).zero_();
  std::vector<at::Tensor> matrices = {pattern({64, 4}, 1),     dependent,          nothing,
                                      pattern({50, 1}, 2),     at::zeros({30, 2}), pattern({64, 4}, 1) * 1e-12,
                                      pattern({64, 4}, 4) + 30};
  std::vector<at::Tensor> there;
  for (const auto& matrix : matrices) there.push_back(matrix.to(FakeDevice::device()));
  const auto items = FakeDevice::items();
  orthonormalise_columns(there);
  CHECK((FakeDevice::items() == items));
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    INFO("matrix " << i);
    auto expected = matrices[i].clone();
    orthonormalise_columns(expected.data_ptr<float>(), expected.size(0), expected.size(1));
    CHECK(max_difference(there[i].cpu(), expected) < 1e-5);
  }
}

TEST_CASE("[D10] [L03] on a device a NaN gradient reaches all ranks and leaves PowerSGD's error feedback as it was") {
  const std::size_t broken_tensor = GENERATE(0, 1, 3);
  const double value = GENERATE(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity());
  FakeDevice::reset();
  test::Backend backend{"nccl", "auto"};
  backend.nccl = std::make_shared<test::ThreadNccl>();
  backend.device = FakeDevice::device();
  test::run_ranks({backend, 2}, [&](Communicator& communicator) {
    PowerSgd hook(4, 0);
    const auto reduce = [&](std::int64_t step, bool broken) {
      auto tensors = gradients_of(communicator.rank(), step);
      if (broken && communicator.rank() == 1)
        tensors[broken_tensor].as_strided({tensors[broken_tensor].numel()}, {1})[7] = value;
      auto bucket = bucket_there(tensors, step, communicator.device());
      hook.reduce(bucket, communicator);
      return bucket;
    };
    reduce(0, false);
    NamedTensors before;
    for (const auto& [name, tensor] : hook.state()) before.emplace_back(name, tensor.cpu().clone());
    const auto broken = reduce(1, true);
    require(!at::isfinite(broken.gradients[broken_tensor].cpu()).all().item<bool>(),
            "rank " + std::to_string(communicator.rank()));
    const auto after = hook.state();
    for (std::size_t i = 0; i < after.size(); ++i)
      require(at::equal(after[i].second.cpu(), before[i].second), after[i].first + " is unchanged");
    require(at::isfinite(reduce(2, false).flat.cpu()).all().item<bool>(), "the next step is finite");
  });
}

TEST_CASE("[D10] [L03] on a device PowerSGD forgets a step that was given up, and goes on from its saved state") {
  const auto undisturbed = reduced_there(true, 2, 5);
  const auto loaded = reduced_there(true, 2, 5, at::kFloat, [](PowerSgd& hook, std::int64_t step) {
    if (step != 3) return;
    NamedTensors saved;
    for (const auto& [name, tensor] : hook.state()) saved.emplace_back(name, tensor.cpu().clone());
    hook.load_state(saved);
  });
  check_close(loaded[1], undisturbed[1], 1e-30);
  test::Backend backend{"nccl", "auto"};
  backend.nccl = std::make_shared<test::ThreadNccl>();
  backend.device = FakeDevice::device();
  test::run_ranks({backend, 2}, [&](Communicator& communicator) {
    PowerSgd hook(4, 0), other(4, 0);
    for (std::int64_t step = 0; step < 4; ++step) {
      if (step % 2 == 1) {
        auto given_up = bucket_there(gradients_of(communicator.rank(), step + 7), step, communicator.device());
        hook.reduce(given_up, communicator);
        hook.roll_back(step);
      }
      auto bucket = bucket_there(gradients_of(communicator.rank(), step), step, communicator.device());
      auto expected = bucket_there(gradients_of(communicator.rank(), step), step, communicator.device());
      hook.reduce(bucket, communicator);
      other.reduce(expected, communicator);
      require(at::equal(bucket.flat.cpu(), expected.flat.cpu()), "the bits of step " + std::to_string(step));
    }
  });
}

TEST_CASE("[D10] [L03] on a device ddp with PowerSGD trains as on the CPU, and the host waits for the vote alone") {
  std::int64_t before = 0;
  int items = 0;
  const auto train = [&](bool on_device, int ranks) {
    FakeDevice::reset();
    testing::SmallTraining training("ddp", ranks);
    training.steps = 10;
    training.jobs.options.strategy.comm_hook = "powersgd";
    training.jobs.options.strategy.powersgd_rank = 2;
    training.jobs.options.training.verify_every = on_device && ranks == 1 ? 0 : 3;
    training.jobs.options.training.snapshot_every = 0;
    if (on_device) {
      training.jobs.options.device = FakeDevice::device();
      training.jobs.options.nccl = std::make_shared<test::ThreadNccl>();
      training.model = [make = training.model] {
        auto model = make();
        model->to(FakeDevice::device());
        return model;
      };
      training.forward = [](torch::nn::Module& model, const at::Tensor& input) {
        return dynamic_cast<testing::SmallMlpImpl&>(model).forward(input.to(FakeDevice::device()));
      };
    }
    if (on_device && ranks == 1) {
      training.before_step = [&](RankSystem&, torch::nn::Module&, std::int64_t step) {
        if (step != 4) return;
        FakeDevice::look_for_races();
        before = host_waits();
        items = FakeDevice::items();
      };
      training.at_end = [&](RankSystem&, Optimizer&) {
        CHECK((FakeDevice::races() == std::vector<std::string>{}));
        CHECK((host_waits() - before == 6));
        CHECK((FakeDevice::items() == items));
      };
    }
    auto result = training.run();
    REQUIRE(testing::joined(result.errors) == "");
    return result;
  };
  const int ranks = GENERATE(1, 2);
  const auto cpu = train(false, ranks), device = train(true, ranks);
  CHECK(testing::largest_difference(cpu.losses, device.losses) < 1e-5);
  CHECK(testing::largest_difference(testing::model_part(cpu.state), testing::model_part(device.state)) < 5e-5);
}
