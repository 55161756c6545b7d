// SyncBatchNorm on a device, without one: see device_training_test.cpp. Its operators are the test's, by their formulas
// (tests/support/fake_batch_norm.cpp).
#include <c10/core/AutogradState.h>

#include <atomic>

#include "actors/block/activation_checkpointing.hpp"
#include "actors/block/block.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tests/catch.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/golden.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/small_training.hpp"
#include "tests/support/thread_nccl.hpp"

using namespace troupe;
using troupe::test::FakeDevice;
using troupe::test::max_difference;
using troupe::test::pattern;

namespace {

/// What a BatchNorm did with a batch, on the host.
struct NormOutcome {
  at::Tensor output, grad_input, grad_weight, grad_bias, running_mean, running_var;
};

template <class Holder>
Holder norm_of(std::int64_t features, at::ScalarType dtype, bool affine = true, bool tracks = true) {
  Holder norm(torch::nn::BatchNormOptions(features).momentum(0.3).affine(affine).track_running_stats(tracks));
  torch::NoGradGuard no_grad;
  if (affine) {
    norm->weight.copy_(pattern({features}, 9) + 1.5);
    norm->bias.copy_(pattern({features}, 8));
  }
  norm->to(dtype);
  return norm;
}

at::Tensor wide(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().cpu().to(at::kDouble) : at::zeros({1}, at::kDouble);
}

template <class Holder>
NormOutcome outcome_of(Holder& norm, const at::Tensor& input, const at::Tensor& weights) {
  auto leaf = input.detach().clone(at::MemoryFormat::Preserve).requires_grad_();
  const auto output = norm->forward(leaf);
  const auto there = weights.to(output.device());
  const auto loose = output.to(weights.scalar_type());
  ((loose * there).sum() + 0.5 * (loose.square() * there).sum()).backward();
  return {wide(output),
          wide(leaf.grad()),
          wide(norm->weight.defined() ? norm->weight.grad() : at::Tensor()),
          wide(norm->weight.defined() ? norm->bias.grad() : at::Tensor()),
          wide(norm->running_mean),
          wide(norm->running_var)};
}

struct NormPart {
  std::int64_t begin = 0, samples = 0;
  std::int64_t counted = -1;
};

/// Ranks on a device, each with its part of the batch.
template <class Ours>
std::vector<NormOutcome> on_ranks(const at::Tensor& batch, const at::Tensor& weights,
                                  const std::vector<NormPart>& parts, at::ScalarType dtype, bool affine = true,
                                  bool tracks = true) {
  FakeDevice::reset();
  std::vector<NormOutcome> outcomes(parts.size());
  test::Backend backend{"nccl", "auto"};
  backend.nccl = std::make_shared<test::ThreadNccl>();
  backend.device = FakeDevice::device();
  test::run_ranks({backend, static_cast<int>(parts.size())}, [&](Communicator& communicator) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(
        false);  // ranks share a device, LibTorch has a thread for each
    const auto r = static_cast<std::size_t>(communicator.rank());
    auto norm = norm_of<Ours>(batch.size(1), dtype, affine, tracks);
    norm->to(FakeDevice::device());
    norm->synchronise(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &communicator), "head");
    norm->count_samples(parts[r].counted);
    outcomes[r] = outcome_of(norm, batch.narrow(0, parts[r].begin, parts[r].samples).to(FakeDevice::device()),
                             weights.narrow(0, parts[r].begin, parts[r].samples));
  });
  return outcomes;
}

std::vector<NormPart> uneven_parts(std::int64_t samples, int ranks) {
  std::vector<NormPart> parts;
  for (int r = 0; r < ranks; ++r) {
    const auto begin = samples * r * (r + 1) / (ranks * (ranks + 1)),
               end = samples * (r + 1) * (r + 2) / (ranks * (ranks + 1));
    parts.push_back({begin, end - begin});
  }
  return parts;
}

template <class Stock, class Ours>
void check_as_one_rank(const at::Tensor& batch, int ranks, double tolerance, at::ScalarType dtype = at::kFloat,
                       bool affine = true, bool tracks = true) {
  const auto weights = pattern(batch.sizes().vec(), 31).to(dtype == at::kDouble ? at::kDouble : at::kFloat);
  auto stock = norm_of<Stock>(batch.size(1), dtype, affine, tracks);
  const auto whole = outcome_of(stock, batch, weights);
  const auto parts = on_ranks<Ours>(batch, weights, uneven_parts(batch.size(0), ranks), dtype, affine, tracks);
  std::vector<at::Tensor> outputs, grad_inputs;
  auto grad_weight = at::zeros_like(whole.grad_weight), grad_bias = at::zeros_like(whole.grad_bias);
  for (const auto& part : parts) {
    outputs.push_back(part.output);
    grad_inputs.push_back(part.grad_input);
    grad_weight += part.grad_weight;
    grad_bias += part.grad_bias;
    CHECK(max_difference(part.running_mean, whole.running_mean) < tolerance);
    CHECK(max_difference(part.running_var, whole.running_var) < tolerance);
  }
  CHECK(max_difference(at::cat(outputs), whole.output) < tolerance);
  CHECK(max_difference(at::cat(grad_inputs), whole.grad_input) < tolerance);
  CHECK(max_difference(grad_weight, whole.grad_weight) < tolerance * 20);
  CHECK(max_difference(grad_bias, whole.grad_bias) < tolerance * 20);
}

}  // namespace

TEST_CASE("[D09] [L03] on a device ranks with parts of a batch compute what one rank computes with the whole") {
  const auto ranks = GENERATE(1, 2, 3);
  INFO(ranks << " ranks");
  SECTION("1d, (N, C)") {
    check_as_one_rank<torch::nn::BatchNorm1d, nn::BatchNorm1d>(pattern({13, 5}, 1), ranks, 4e-6);
  }
  SECTION("2d") { check_as_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(pattern({12, 6, 5, 4}, 1), ranks, 2e-5); }
  SECTION("2d, channels last") {
    check_as_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(
        pattern({12, 6, 5, 4}, 1).contiguous(at::MemoryFormat::ChannelsLast), ranks, 2e-5);
  }
  SECTION("3d") {
    check_as_one_rank<torch::nn::BatchNorm3d, nn::BatchNorm3d>(pattern({6, 3, 2, 5, 4}, 1), ranks, 2e-5);
  }
  SECTION("f64") {
    check_as_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(pattern({12, 6, 5, 4}, 1).to(at::kDouble), ranks, 1e-12,
                                                               at::kDouble);
  }
  SECTION("without weight and bias") {
    check_as_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(pattern({12, 6, 5, 4}, 1), ranks, 2e-5, at::kFloat,
                                                               false);
  }
  SECTION("without running statistics") {
    check_as_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(pattern({12, 6, 5, 4}, 1), ranks, 2e-5, at::kFloat, true,
                                                               false);
  }
  // A unit in the last place of the largest gradients is 0.0625 in bf16.
  SECTION("bf16 from autocast, statistics in f32") {
    check_as_one_rank<torch::nn::BatchNorm2d, nn::BatchNorm2d>(pattern({12, 6, 5, 4}, 1).to(at::kBFloat16), ranks,
                                                               7e-2);
  }
}

TEST_CASE("[D09] [L03] on a device a module in bf16 has its statistics in f32") {
  const auto batch = pattern({12, 6, 5, 4}, 1).to(at::kBFloat16);
  const auto weights = pattern({12, 6, 5, 4}, 31);
  for (const bool tracks : {true, false}) {
    auto stock = norm_of<torch::nn::BatchNorm2d>(6, at::kBFloat16, true, tracks);
    stock->to(at::kFloat);
    const auto whole = outcome_of(stock, batch.to(at::kFloat), weights);
    const auto parts = on_ranks<nn::BatchNorm2d>(batch, weights, uneven_parts(12, 2), at::kBFloat16, true, tracks);
    CHECK(max_difference(at::cat({parts[0].output, parts[1].output}), whole.output) < 3e-2);
    CHECK(max_difference(at::cat({parts[0].grad_input, parts[1].grad_input}), whole.grad_input) < 7e-2);
    if (tracks) CHECK(max_difference(parts[1].running_var, whole.running_var) < 5e-3);
  }
}

TEST_CASE("[D09] [L03] on a device a rank without data joins in and does not count, whichever it is") {
  const auto batch = at::cat({pattern({10, 4, 3, 3}, 1), pattern({3, 4, 3, 3}, 50) * 100});
  const auto weights = at::cat({pattern({10, 4, 3, 3}, 5), at::zeros({3, 4, 3, 3})});
  auto stock = norm_of<torch::nn::BatchNorm2d>(4, at::kFloat);
  const auto whole = outcome_of(stock, batch.narrow(0, 0, 10), weights.narrow(0, 0, 10));
  const std::size_t empty = GENERATE(0, 1, 2);
  std::vector<NormPart> parts = {{0, 6}, {6, 4}};
  parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(empty), NormPart{10, 3, 0});
  const auto outcomes = on_ranks<nn::BatchNorm2d>(batch, weights, parts, at::kFloat);
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    CHECK(max_difference(outcomes[r].running_mean, whole.running_mean) < 1e-6);
    CHECK(max_difference(outcomes[r].running_var, whole.running_var) < 1e-6);
    if (r == empty) {
      CHECK(outcomes[r].grad_input.abs().max().item<double>() == 0);
      continue;
    }
    CHECK(max_difference(outcomes[r].output, whole.output.narrow(0, parts[r].begin, parts[r].samples)) < 4e-6);
    CHECK(max_difference(outcomes[r].grad_input, whole.grad_input.narrow(0, parts[r].begin, parts[r].samples)) < 8e-6);
  }
}

TEST_CASE("[D09] [L03] on a device samples that pad a batch do not count") {
  const auto batch = pattern({12, 4, 3, 3}, 1);
  const auto weights = at::cat({pattern({10, 4, 3, 3}, 5), at::zeros({2, 4, 3, 3})});
  auto stock = norm_of<torch::nn::BatchNorm2d>(4, at::kFloat);
  const auto whole = outcome_of(stock, batch.narrow(0, 0, 10), weights.narrow(0, 0, 10));
  const auto parts = on_ranks<nn::BatchNorm2d>(batch, weights, {{0, 6}, {6, 6, 4}}, at::kFloat);
  CHECK(max_difference(at::cat({parts[0].grad_input, parts[1].grad_input.narrow(0, 0, 4)}), whole.grad_input) < 8e-6);
  CHECK(max_difference(parts[1].running_var, whole.running_var) < 1e-6);
}

TEST_CASE("[D09] [L03] on a device a synchronised BatchNorm refuses what has no statistics, and has moved none") {
  const auto batch = at::ones({4, 3});
  FakeDevice::reset();
  test::Backend backend{"nccl", "auto"};
  backend.nccl = std::make_shared<test::ThreadNccl>();
  backend.device = FakeDevice::device();
  const auto failures = test::run_ranks_catching({backend, 2}, [&](Communicator& communicator) {
    auto norm = norm_of<nn::BatchNorm1d>(3, at::kFloat);
    norm->to(FakeDevice::device());
    norm->synchronise(std::shared_ptr<Communicator>(std::shared_ptr<void>(), &communicator), "head");
    norm->count_samples(communicator.rank() == 0 ? 1 : 0);
    try {
      norm->forward(batch.to(FakeDevice::device()));
    } catch (...) {
      test::require(norm->running_mean.cpu().abs().max().item<float>() == 0, "the running mean is the one from before");
      throw;
    }
  });
  for (const auto& failure : failures) {
    REQUIRE(failure.has_value());
    CHECK_THAT(failure->text, Catch::Contains("head") && Catch::Contains("1 value per channel"));
  }
}

namespace {

struct NormLayerImpl : torch::nn::Module {
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(12, 12));
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(12));
  at::Tensor forward(const at::Tensor& x) { return x + torch::tanh(norm(fc(x))); }
};
TROUPE_BLOCK(NormLayer);

struct NormStackImpl : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(8, 12));
  NormLayer first = register_module("first", NormLayer());
  NormLayer second = register_module("second", NormLayer());
  torch::nn::Linear out = register_module("out", torch::nn::Linear(12, 3));
  at::Tensor forward(const at::Tensor& x) { return out(second(first(in(x)))); }
};

constexpr std::int64_t kNormSteps = 8;

testing::SmallTraining::Result train_norms(bool on_device, const std::string& strategy, int ranks,
                                           const std::string& policy,
                                           const std::function<void(testing::SmallTraining&)>& change = {}) {
  FakeDevice::reset();
  testing::SmallTraining training(strategy, ranks);
  training.steps = kNormSteps;
  training.jobs.options.strategy.fsdp_mapped = false;
  const auto device = on_device ? FakeDevice::device() : c10::Device(at::kCPU);
  training.jobs.options.device = device;
  if (on_device) training.jobs.options.nccl = std::make_shared<test::ThreadNccl>();
  training.model = [=]() -> std::shared_ptr<torch::nn::Module> {
    if (on_device && ranks > 1) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    auto model = testing::make_seeded<NormStackImpl>(5);
    if (on_device) model->to(FakeDevice::device());
    checkpoint_activations(model, policy);
    return model;
  };
  training.before_step = [](RankSystem& system, torch::nn::Module& model, std::int64_t step) {
    if (step == 0) convert_sync_batchnorm(model, system.compute().services().program_communicator);
  };
  training.forward = [device](torch::nn::Module& model, const at::Tensor& input) {
    return dynamic_cast<NormStackImpl&>(model).forward(input.to(device));
  };
  if (change) change(training);
  auto result = training.run();
  REQUIRE(testing::joined(result.errors) == "");
  return result;
}

}  // namespace

TEST_CASE("[D09] [L03] on a device a model with SyncBatchNorm trains to the CPU's losses, checkpointed or not") {
  const auto strategy = GENERATE(as<std::string>{}, "ddp", "fsdp full_shard");
  const auto policy = GENERATE(as<std::string>{}, "none", "block");
  const auto device = train_norms(true, strategy, 2, policy), cpu = train_norms(false, strategy, 2, policy);
  // In f32 there, in f64 here.
  CHECK(testing::largest_difference(device.losses, cpu.losses) < 2e-6);
  CHECK(testing::largest_difference(device.state, cpu.state) < 2e-5);
  if (policy == "none") return;
  const auto kept = train_norms(true, strategy, 2, "none");
  CHECK(testing::largest_difference(device.losses, kept.losses) == 0);
  CHECK(testing::largest_difference(device.state, kept.state) == 0);
}

TEST_CASE("[D09] [L03] on a device SyncBatchNorm waits for nothing on the host, and reads no value") {
  std::int64_t before = 0;
  int items = 0;
  train_norms(true, "ddp", 2, "none", [&](testing::SmallTraining& training) {
    training.jobs.options.training.verify_every = training.jobs.options.training.snapshot_every = 0;
    training.before_step = [&, convert = training.before_step](RankSystem& system, torch::nn::Module& model,
                                                               std::int64_t step) {
      convert(system, model, step);
      if (system.compute().rank() != 0 || step != 2) return;
      before = host_waits();
      items = FakeDevice::items();
    };
    training.at_end = [&](RankSystem& system, Optimizer&) {
      system.compute().program_communicator().barrier("end");
      if (system.compute().rank() == 0) {
        const auto waits =
            host_waits() - before;  // the other rank may be up to one step ahead or behind where the count began
        CHECK(waits >= 2 * (kNormSteps - 2) - 1);
        CHECK(waits <= 2 * (kNormSteps - 2) + 1);
        CHECK((FakeDevice::items() == items));
      }
      system.compute().program_communicator().barrier("counted");
    };
  });
}

// The others have their replicas by then, and make them again in the next generation.
TEST_CASE(
    "[D09] [L05] SyncBatchNorm goes over to the next generation where a rank dies while the model is distributed") {
  constexpr std::int64_t kFeatures = 4;
  FakeDevice::reset();
  Config config;
  config.ranks = 2;
  config.sync_batchnorm = true;
  config.batch_size = 8;
  config.max_steps = 3;
  config.save_every = -1;
  auto simulation = testing::simulation_of(config);
  simulation.rank.device = FakeDevice::device();
  simulation.rank.nccl = std::make_shared<test::ThreadNccl>();
  simulation.recovery.enabled = true;
  simulation.recovery.replace_timeout = std::chrono::seconds(60);
  simulation.faults = [](int slot, int life) -> std::vector<PlacedFault> {
    using std::chrono::milliseconds;
    if (life > 0) return {};
    return slot == 1 ? std::vector<PlacedFault>{{"distribute", 0, ChaosKind::kill, milliseconds(0)}}
                     : std::vector<PlacedFault>{{"distribute", 0, ChaosKind::stop, milliseconds(300)}};
  };
  std::atomic<std::uint64_t> generations{0};
  simulation.on_membership = [&](const Membership& next) { generations = next.generation; };
  const auto data = std::make_shared<TensorDataset>(torch::randn({64, kFeatures}, at::detail::createCPUGenerator(5)),
                                                    torch::zeros({64}, at::kLong));
  std::vector<std::string> errors;
  const auto body = [&](Rank& rank) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    const auto norm = std::make_shared<troupe::nn::BatchNorm1dImpl>(kFeatures);
    rank.distribute(norm);
    torch::optim::SGD sgd(norm->parameters(), 0.1);
    for (const auto& batch : rank.loader(data)) {
      rank.backward(norm->forward(batch.input.to(rank.device())).square().mean());
      (void)rank.step(sgd);
    }
  };
  testing::run_simulation(config, simulation, body,
                          [&](int, const ErrorReport& report) { errors.push_back(report.to_string()); });
  CHECK(testing::joined(errors) == "");
  CHECK(generations == 2);
}
