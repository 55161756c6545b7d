#include "tensor_io/optimizer/step_decision_on_device.hpp"

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tests/catch.hpp"

using namespace troupe;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor totals(double squares, double not_finite) { return torch::tensor({squares, not_finite}, at::kDouble); }
at::Tensor scale_of(double value) { return torch::full({}, value, at::kFloat); }

}  // namespace

TEST_CASE("[T01] the device's decision has the factor of the host, and skips what is not finite") {
  const double clip = GENERATE(0.0, 0.3, 5.0), scale = GENERATE(1.0, 3.7, 65536.0),
               squares = GENERATE(0.0, 0.01, 2.0, 1e9);
  const auto f32 = static_cast<double>(static_cast<float>(scale));
  const auto decision = decide_on_device(totals(squares, 0), scale == 1 ? at::Tensor() : scale_of(scale), clip, true);
  // Compute::apply.
  const double norm = std::sqrt(squares) / f32;
  double factor = 1 / f32;
  if (clip > 0 && norm + 1e-6 > clip) factor *= clip / (norm + 1e-6);
  CHECK(decision.skip.item<float>() == 0);
  CHECK((decision.skip.scalar_type() == at::kFloat));
  if (decision.factor.defined()) {
    // LibTorch's root of 2 is not the C library's on each processor: one last digit apart.
    CHECK(decision.factor.item<double>() == Approx(factor).epsilon(1e-15).margin(0));
  } else {
    CHECK(factor == 1);
  }
}

TEST_CASE("[T01] the device skips a step for its elements, and for a norm that is not finite where that counts") {
  CHECK(decide_on_device(totals(std::nan(""), 1), {}, 0, false).skip.item<float>() == 1);
  CHECK(decide_on_device(totals(kInfinity, 1), {}, 1, true).skip.item<float>() == 1);
  CHECK(decide_on_device(totals(std::nan(""), 3), scale_of(2), 0, true).skip.item<float>() == 1);
  for (const double squares : {std::nan(""), kInfinity})
    CHECK(std::isfinite(decide_on_device(totals(squares, 1), scale_of(2), 1, true).factor.item<double>()));
  CHECK(decide_on_device(totals(kInfinity, 0), {}, 0, false).skip.item<float>() ==
        0);  // squares of f64 that no f64 holds
  CHECK(decide_on_device(totals(4, 0), {}, 0, false).skip.item<float>() == 0);
}

TEST_CASE("[T01] gradients times a factor on the device are those times the host's, in 16 bits multiplied in f32") {
  const auto dtype = GENERATE(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16);
  const double factor = GENERATE(1.0, 1 / 65536.0, 0.3712345678901);
  const auto flat = torch::randn({1037}, at::kDouble).to(dtype);
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  auto mine = flat.clone();
  scale_by(mine, torch::full({}, factor, at::kDouble));
  const auto theirs = half ? flat.to(at::kFloat).mul_(factor).to(dtype) : flat.clone().mul_(factor);
  INFO(c10::toString(dtype) << " times " << factor);
  CHECK(at::equal(mine, theirs));
}

TEST_CASE("[T01] the loss scale on the device goes the way of the host's") {
  LossScalerOptions options;
  options.loss_scale_init = 1000;
  options.loss_scale_growth = 1.7;
  options.loss_scale_backoff = 0.3;
  options.loss_scale_interval = 3;
  LossScaler host(options, true);
  DeviceLossScale device(options, at::kCPU);
  device.load(host);
  for (int step = 0; step < 60; ++step) {
    INFO(step);
    REQUIRE(static_cast<double>(device.value().item<float>()) == host.scale());
    const bool skipped = step % 7 == 5 || step % 11 == 6;
    device.update(torch::full({}, skipped ? 1.0 : 0.0, at::kFloat));
    host.update(skipped);
    if (step == 30) device.load(host);
  }
}

TEST_CASE(
    "[T01] what a loss on the device is multiplied by is the host's factor, and not a number for a loss that is none") {
  LossScaler host({}, GENERATE(true, false));
  DeviceLossScale device({}, at::kCPU);
  device.load(host);
  const double weight = GENERATE(1.0, 0.7, 0.0);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const auto loss = torch::full({}, 0.3, dtype).requires_grad_();
    const auto factor = device.factor_of(loss, weight, 3);
    const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
    CHECK((factor.scalar_type() == (half ? at::kFloat : dtype)));
    // The gradient that backward starts from is what counts.
    (loss.to(factor.scalar_type()) * factor).backward();
    const auto mine = loss.grad().clone();
    loss.mutable_grad() = at::Tensor();
    (loss * (weight * host.scale() / 3)).backward();
    CHECK(at::equal(mine, loss.grad()));
    for (const double bad : {kInfinity, -kInfinity, std::nan("")})
      CHECK(std::isnan(device.factor_of(torch::full({}, bad, dtype), weight, 3).item<double>()));
  }
}
