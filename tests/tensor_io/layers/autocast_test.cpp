#include "tensor_io/layers/autocast.hpp"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "tests/catch.hpp"
#include "tests/support/golden.hpp"

using namespace troupe;
using namespace troupe::test;

TEST_CASE("[T01] under autocast a layer computes in bf16 what PyTorch's does, with gradients in f32") {
  const Golden golden("training.txt");
  auto weight = pattern({10, 24}, 5).requires_grad_(), bias = pattern({10}, 6).requires_grad_();
  at::Tensor hidden, loss;
  {
    const AutocastGuard guard(true);
    hidden = torch::linear(pattern({8, 24}, 4), weight, bias);
    loss = torch::nn::functional::cross_entropy(hidden, torch::tensor({0, 3, 9, 1, 1, 7, 4, 5}));
  }
  CHECK(hidden.scalar_type() == at::kBFloat16);
  CHECK(loss.scalar_type() == at::kFloat);
  CHECK(max_difference(hidden, golden.tensor("autocast.hidden")) < 0.02);
  CHECK(loss.item<double>() == Approx(golden.tensor("autocast.loss").item<double>()).epsilon(2e-3));
  loss.backward();
  CHECK(weight.grad().scalar_type() == at::kFloat);
  CHECK(max_difference(weight.grad(), golden.tensor("autocast.grad")) < 5e-3);
}

TEST_CASE("[T01] autocast ends with its guard, also by an exception, and guards nest") {
  const auto dtype = [] { return torch::linear(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); };
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  try {
    const AutocastGuard guard(true);
    {
      const AutocastGuard inner(true);
      CHECK(dtype() == at::kBFloat16);
    }
    CHECK(dtype() == at::kBFloat16);
    throw std::runtime_error("a user's loss");
  } catch (const std::runtime_error&) {
  }
  CHECK(dtype() == at::kFloat);
  CHECK(at::autocast::get_autocast_dtype(at::kCPU) == at::kHalf);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const AutocastGuard off(false);
  CHECK(dtype() == at::kFloat);
}

TEST_CASE("[T01] autocast sees weights as the optimizer left them") {
  auto weight = at::ones({2, 2}).requires_grad_();
  const auto forward = [&] {
    const AutocastGuard guard(true);
    return torch::linear(at::ones({1, 2}), weight).sum().item<double>();
  };
  CHECK(forward() == 4);
  {
    torch::NoGradGuard no_grad;
    weight.mul_(2);
  }
  CHECK(forward() == 8);
}

TEST_CASE("[T02] label smoothing is PyTorch's") {
  const Golden golden("training.txt");
  auto scores = pattern({8, 10}, 2).requires_grad_();
  const auto loss =
      torch::nn::functional::cross_entropy(scores, torch::tensor({0, 3, 9, 1, 1, 7, 4, 5}),
                                           torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(0.1));
  loss.backward();
  CHECK(loss.item<double>() == Approx(golden.tensor("label_smoothing.loss").item<double>()).epsilon(1e-6));
  CHECK(max_difference(scores.grad(), golden.tensor("label_smoothing.grad")) < 1e-7);
}
