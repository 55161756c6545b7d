#include "tensor_io/kernels/gradient_clip.hpp"

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "tests/catch.hpp"
#include "tests/support/golden.hpp"

using namespace troupe;
using namespace troupe::test;

TEST_CASE("[D12] clipping by global norm gives PyTorch's norm and gradients") {
  const Golden golden("training.txt");
  std::vector<at::Tensor> gradients{pattern({15}, 3), pattern({70}, 4), pattern({4}, 5)};
  const double norm = global_norm(gradients);
  CHECK(norm == Approx(golden.doubles("clip.norm")[0]).epsilon(1e-6));
  for (auto& gradient : gradients) gradient.mul_(clip_factor(norm, 1.5));
  for (std::size_t i = 0; i < gradients.size(); ++i)
    CHECK(max_difference(gradients[i], golden.tensor("clip." + std::to_string(i))) < 1e-7);
  CHECK(global_norm(gradients) == Approx(1.5).epsilon(1e-5));
}

TEST_CASE("[D12] gradients below the limit are left alone") {
  CHECK(clip_factor(1.0, 1.5) == 1.0);
  CHECK(clip_factor(0.0, 1.5) == 1.0);
  CHECK(clip_factor(3.0, 1.5) == Approx(0.5).epsilon(1e-6));
}

TEST_CASE("[D12] the norm adds up in f64, in a fixed order") {
  const auto numel = GENERATE(0, 1, 31, 32, 33, 1000);
  const auto values = pattern({numel}, 7);
  double expected = 0;
  for (std::int64_t i = 0; i < numel; ++i) expected += std::pow(static_cast<double>(values[i].item<float>()), 2);
  CHECK(sum_of_squares(values) == Approx(expected).epsilon(1e-14));
  CHECK(sum_of_squares(values.to(at::kDouble)) == sum_of_squares(values));
  CHECK(sum_of_squares(values.to(at::kBFloat16)) == Approx(expected).epsilon(1e-2));

  // An f32 sum would stand still at 2^24.
  CHECK(sum_of_squares(at::ones({1 << 25})) == static_cast<double>(1 << 25));
}

TEST_CASE("the norm does not depend on strides and shows what is not finite") {
  const auto values = pattern({4, 6, 3, 3}, 1);
  const auto other = values.contiguous(at::MemoryFormat::ChannelsLast);
  CHECK(sum_of_squares(other) == Approx(sum_of_squares(values)).epsilon(1e-14));
  CHECK(sum_of_squares(values.transpose(0, 1).slice(2, 0, 3, 2)) ==
        Approx(values.slice(2, 0, 3, 2).to(at::kDouble).square().sum().item<double>()));
  auto bad = values.clone();
  bad[1][2][0][0] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(global_norm({values, bad})));
  bad[1][2][0][0] = std::numeric_limits<float>::infinity();
  CHECK(std::isinf(global_norm({values, bad})));
}
