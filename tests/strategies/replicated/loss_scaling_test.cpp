// Dynamic loss scaling through vote, skip and update.
#include "strategies/hooks/comm_hooks.hpp"
#include "strategies/replicated/ddp.hpp"
#include "tensor_io/layers/autocast.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/golden.hpp"

using namespace troupe;
using testing::check_no_errors;

namespace {

struct LineImpl : torch::nn::Module {
  explicit LineImpl(std::int64_t in = 4, std::int64_t out = 3) {
    weight = register_parameter("weight", test::pattern({out, in}, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight.t()); }
  at::Tensor weight;
};

testing::Cluster scaling_cluster(int world_size) {
  auto cluster = testing::ddp_cluster(world_size);
  cluster.options.training.loss_scaler = "on";
  return cluster;
}

std::unique_ptr<Optimizer> sgd(LineImpl& model, double momentum, double weight_decay = 0) {
  OptimizerOptions options;
  options.momentum = momentum;
  options.weight_decay = weight_decay;
  ParameterGroup group;
  group.parameters.emplace_back("weight", model.weight);
  return make_optimizer(options, {group});
}

}  // namespace

TEST_CASE("[T01] training with a loss scaler gives what PyTorch's GradScaler gives, skipped steps and clipping too") {
  const test::Golden golden("loss_scaler.txt");
  const auto norms = golden.doubles("training.norms"), scales = golden.doubles("training.scale");
  auto jobs = scaling_cluster(1);
  jobs.options.training.loss_scale_init = 4096;
  jobs.options.training.loss_scale_interval = 2;
  jobs.options.training.clip_norm = 0.5;
  std::vector<StepReport> reports;
  std::vector<double> after;
  at::Tensor weight;
  check_no_errors(jobs.run([&](RankSystem& rank) {
    auto model = std::make_shared<LineImpl>();
    rank.compute().distribute(model);
    auto optimizer = sgd(*model, 0.9);
    for (std::int64_t step = 0; step < 10; ++step) {
      const auto y = model->forward(test::pattern({2, 4}, step + 2));
      const bool overflows = step == 3 || step == 7;
      rank.compute().backward(overflows ? (y.clamp(-1, 1) * 1e38).mean() : y.square().mean(), 2);
      reports.push_back(rank.compute().step(*optimizer, 0.1));
      after.push_back(rank.compute().loss_scaler().scale());
    }
    weight = model->weight.detach().clone();
  }));
  REQUIRE(reports.size() == 10);
  for (std::size_t step = 0; step < 10; ++step) {
    CHECK(reports[step].committed == (step != 3 && step != 7));
    CHECK(after[step] == scales[step]);
    if (reports[step].committed) CHECK(reports[step].gradient_norm == Approx(norms[step]).epsilon(1e-6));
  }
  CHECK(test::max_difference(weight, golden.tensor("training.weight")) < 1e-6);
}

TEST_CASE("[T01] an overflow on one rank skips the step and halves the scale on all") {
  constexpr int kRanks = 3;
  std::vector<std::vector<double>> scales(kRanks), steps(kRanks);
  std::vector<at::Tensor> weights(kRanks);
  auto jobs = scaling_cluster(kRanks);
  jobs.options.training.loss_scale_interval = 2;
  check_no_errors(jobs.run([&](RankSystem& rank) {
    auto model = std::make_shared<LineImpl>();
    rank.compute().distribute(model);
    auto optimizer = sgd(*model, 0, 0.1);
    const auto r = static_cast<std::size_t>(rank.compute().rank());
    for (int step = 0; step < 6; ++step) {
      const auto y = model->forward(at::ones({2, 4}));
      const double huge = r == 1 && step == 2 ? 1e38 : 0.01;
      rank.compute().backward((y.clamp(-1, 1) * huge).mean(), 2);
      steps[r].push_back(rank.compute().step(*optimizer, 0.1).committed ? 1 : 0);
      scales[r].push_back(rank.compute().loss_scaler().scale());
    }
    weights[r] = model->weight.detach().clone();
  }));
  for (std::size_t r = 0; r < kRanks; ++r) {
    CHECK(steps[r] == std::vector<double>{1, 1, 0, 1, 1, 1});
    CHECK(scales[r] == std::vector<double>{65536, 131072, 65536, 65536, 131072, 131072});
    CHECK((at::equal(weights[r], weights[0])));
  }
}

TEST_CASE("[T01] an overflow that only the sum over ranks has skips the step too") {
  auto jobs = scaling_cluster(2);
  jobs.options.strategy.comm_hook = "fp16";
  std::vector<int> committed(2);
  std::vector<double> scales(2);
  check_no_errors(jobs.run([&](RankSystem& rank) {
    auto model = std::make_shared<LineImpl>();
    rank.compute().distribute(model);
    auto optimizer = sgd(*model, 0);
    // About 1e5 with the scale: finite in f32, infinite in the fp16 that the hook sends.
    rank.compute().backward((model->forward(at::ones({2, 4})) * 5).sum(), 2);
    const auto r = static_cast<std::size_t>(rank.compute().rank());
    committed[r] = rank.compute().step(*optimizer, 0.1).committed ? 1 : 0;
    scales[r] = rank.compute().loss_scaler().scale();
    if (!model->weight.detach().equal(test::pattern({3, 4}, 1))) throw std::runtime_error("the weight moved");
  }));
  CHECK(committed == std::vector<int>{0, 0});
  CHECK(scales == std::vector<double>{32768, 32768});
}

TEST_CASE("[T01] with fp16 autocast gradients that fp16 has no number for survive by the scale") {
  const auto trained = [](const std::string& scaler) {
    auto jobs = scaling_cluster(2);
    jobs.options.training.use_amp = true;
    jobs.options.training.amp_dtype = "fp16";
    jobs.options.training.loss_scaler = scaler;
    at::Tensor moved;
    double scale = 0;
    check_no_errors(jobs.run([&](RankSystem& rank) {
      auto model = std::make_shared<LineImpl>();
      rank.compute().distribute(model);
      auto optimizer = sgd(*model, 0);
      const auto before = model->weight.detach().clone();
      at::Tensor loss;
      {
        const AutocastGuard autocast(true, at::kHalf);
        loss = model->forward(at::full({2, 4}, 1e-3)).to(at::kFloat).sum() * 1e-6;  // the gradient is 2e-9 each
      }
      rank.compute().backward(loss, 2);
      (void)rank.compute().step(*optimizer, 1.0);
      if (rank.compute().rank() == 0) {
        moved = before - model->weight.detach();
        scale = rank.compute().loss_scaler().scale();
      }
    }));
    return std::pair(moved.abs().max().item<double>(), scale);
  };
  CHECK(trained("off") == std::pair(0.0, 1.0));
  const auto [moved, scale] = trained("auto");
  CHECK(scale == 65536);
  CHECK(moved > 0);
}

TEST_CASE(
    "[T01] a gradient that overflows without any scale, or a loss that is not finite, stops the job where that is "
    "asked for") {
  auto jobs = scaling_cluster(2);
  jobs.options.training.loss_scale_init = 2;
  const bool loss = GENERATE(false, true);
  std::vector<int> steps(2);
  const auto errors = jobs.run([&](RankSystem& rank) {
    auto model = std::make_shared<LineImpl>();
    rank.compute().distribute(model);
    auto optimizer = sgd(*model, 0);
    for (int step = 0; step < 10; ++step) {
      const auto y = model->forward(at::ones({2, 4}));
      auto value = loss ? y.mean() / 0 : (y.clamp(0, 0) + 1).sqrt().mean();
      if (!loss)
        value = value +
                (model->weight - model->weight.detach()).abs().sum().sqrt();  // 0, with a gradient that is not finite
      rank.compute().backward(value, 2);
      (void)rank.compute().step(*optimizer, 0.1);
      ++steps[static_cast<std::size_t>(rank.compute().rank())];
    }
  });
  for (int r = 0; r < 2; ++r) {
    CHECK_THAT(errors[static_cast<std::size_t>(r)],
               Catch::Contains(loss ? "the loss is not finite" : "the gradient of weight is not finite"));
    CHECK(steps[static_cast<std::size_t>(r)] == (loss ? 0 : 2));  // at 2 and at 1 it may have been the scale
  }
}
