#include "tensor_io/kernels/pack.hpp"

#include <torch/torch.h>

#include <limits>

#include "tests/catch.hpp"
#include "tests/support/golden.hpp"

using namespace troupe;
using test::pattern;

TEST_CASE("packing copies and sees one bad value wherever it stands") {
  const auto dtype = GENERATE(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16);
  const auto numel = GENERATE(0, 1, 17, 64, 1000);
  INFO(c10::toString(dtype) << ", " << numel << " values");
  auto source = pattern({numel}, 3).to(dtype);
  auto bucket = at::zeros({numel + 8}, dtype);
  const auto view = bucket.narrow(0, 3, numel);
  CHECK(copy_and_check(view, source));
  CHECK(at::equal(view, source));
  CHECK(bucket.narrow(0, numel + 3, 5).abs().sum().item<double>() == 0);
  CHECK(all_finite(view));

  for (const std::int64_t place :
       {std::int64_t{0}, static_cast<std::int64_t>(numel) / 2, static_cast<std::int64_t>(numel) - 1}) {
    if (numel == 0) break;
    for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
      auto broken = source.clone();
      broken[place] = bad;
      CHECK_FALSE(copy_and_check(view, broken));
      CHECK_FALSE(all_finite(view));
      view.zero_();
      CHECK_FALSE(add_and_check(view, broken));
    }
  }
}

TEST_CASE("packing takes the largest and the smallest numbers for finite") {
  const auto check = [](auto limits, at::ScalarType dtype) {
    using T = typename decltype(limits)::type;
    const auto values = torch::tensor({static_cast<double>(std::numeric_limits<T>::max()),
                                       static_cast<double>(std::numeric_limits<T>::lowest()),
                                       static_cast<double>(std::numeric_limits<T>::denorm_min()), -0.0},
                                      torch::kFloat64)
                            .to(dtype);
    auto to = at::empty({4}, dtype);
    CHECK(copy_and_check(to, values));
    CHECK(at::equal(to, values));
  };
  check(std::type_identity<float>(), at::kFloat);
  check(std::type_identity<double>(), at::kDouble);
  check(std::type_identity<c10::Half>(), at::kHalf);
  check(std::type_identity<c10::BFloat16>(), at::kBFloat16);
}

TEST_CASE("packing adds, and sees a sum that overflows") {
  auto view = pattern({50}, 1);
  CHECK(add_and_check(view, pattern({50}, 2)));
  CHECK(at::equal(view, pattern({50}, 1) + pattern({50}, 2)));
  auto large = at::full({3}, 3e38f);
  CHECK_FALSE(add_and_check(large, at::full({3}, 3e38f)));
}

TEST_CASE("packing follows values, not memory, where layouts differ") {
  const auto source = pattern({4, 3, 5, 5}, 1);
  auto to = at::zeros({4, 3, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  CHECK(copy_and_check(to, source));
  CHECK(at::equal(to, source));
  CHECK(add_and_check(to, source));
  CHECK(at::equal(to, source * 2));
  const auto transposed = pattern({6, 7}, 2).t();
  auto dense = at::zeros({7, 6});
  CHECK(copy_and_check(dense, transposed));
  CHECK(at::equal(dense, transposed));
  auto wide = at::zeros({6, 7}, at::kDouble);
  CHECK(copy_and_check(wide, pattern({6, 7}, 2)));
  CHECK(at::equal(wide, pattern({6, 7}, 2).to(at::kDouble)));
}
