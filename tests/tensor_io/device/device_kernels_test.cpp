// The kernels' twins on the CPU; what the device makes of the same numbers: tests/gpu.
#include "tensor_io/device/device_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <torch/torch.h>

#include "tensor_io/base/error.hpp"
#include "tensor_io/device/pack_items.hpp"
#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE("[T01] pack casts, scales and rounds once, and leaves the gaps alone") {
  const auto to = GENERATE(at::kFloat, at::kHalf, at::kBFloat16);
  const auto from = GENERATE(at::kFloat, at::kHalf, at::kBFloat16);
  torch::manual_seed(1);
  std::vector<at::Tensor> sources = {torch::randn({3, 5}).to(from), torch::randn({1}).to(from), torch::empty({0}, from),
                                     torch::randn({1000}).to(from)};
  const std::vector<std::int64_t> offsets = {0, 20, 30, 64};
  const auto bucket = torch::full({2000}, 7.0, to);
  pack(bucket, sources, offsets, 0.125);
  auto expected = torch::full({2000}, 7.0, to);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    expected.narrow(0, offsets[i], sources[i].numel()).copy_((sources[i].to(at::kFloat) * 0.125f).to(to).view(-1));
  }
  CHECK(torch::equal(bucket, expected));
}

TEST_CASE("[T01] the device's pack gives each element to one block, and a large item as many blocks as it needs") {
  cuda::PackItems items{};
  const std::vector<std::int64_t> numels = {1, cuda::kPackNumel, 0, cuda::kPackNumel + 1, 38'597'376, 7};
  for (const auto numel : numels) items.numels[items.count++] = numel;
  const int blocks = cuda::plan_blocks(items);
  std::vector<std::int64_t> packed(numels.size(), 0);
  for (int block = 0; block < blocks; ++block) {
    const int item = cuda::item_of_block(items, block);
    const std::int64_t begin = std::int64_t{block - items.first_blocks[item]} * cuda::kPackNumel;
    REQUIRE(begin == packed[static_cast<std::size_t>(item)]);
    packed[static_cast<std::size_t>(item)] += std::min<std::int64_t>(items.numels[item] - begin, cuda::kPackNumel);
  }
  CHECK((packed == numels));
  CHECK(blocks == 1 + 1 + 2 + 4712 + 1);
}

TEST_CASE("[T01] pack refuses what does not fit") {
  const auto bucket = torch::zeros({10});
  const std::vector<std::int64_t> offsets = {8};
  CHECK_THROWS_AS(pack(bucket, std::vector{torch::zeros({3})}, offsets), Error);
  CHECK_THROWS_AS(pack(bucket, std::vector{torch::zeros({1}, at::kDouble)}, offsets), Error);
  CHECK_THROWS_AS(
      pack(bucket, std::vector{torch::zeros({2, 2}).t().narrow(0, 0, 1).expand({2, 2})}, std::vector<std::int64_t>{0}),
      Error);
  CHECK_NOTHROW(pack(bucket, std::vector{torch::zeros({2})}, offsets));
}

TEST_CASE("[T01] one pass scales, sums the squares and counts what is not finite") {
  const auto dtype = GENERATE(at::kFloat, at::kHalf, at::kBFloat16);
  const std::int64_t numel = GENERATE(0, 1, 255, 100'003);
  torch::manual_seed(2);
  auto flat = torch::randn({numel}).to(dtype);
  const auto expected = (flat.to(at::kFloat) * 0.5f).to(dtype);
  const auto result = torch::zeros({2}, at::kDouble);
  scale_and_check(flat, 0.5, result);
  CHECK(torch::equal(flat, expected));
  const auto squares = expected.to(at::kDouble).square().sum().item<double>();
  CHECK(result[0].item<double>() == Approx(squares).epsilon(1e-12));
  CHECK(result[1].item<double>() == 0);
  if (numel < 3) return;
  flat[0] = std::numeric_limits<float>::infinity();
  flat[2] = std::nan("");
  scale_and_check(flat, 1, result);
  CHECK(result[1].item<double>() == 2);
  CHECK_FALSE(std::isfinite(result[0].item<double>()));
}

TEST_CASE("[T01] the hash of bytes is the sum of SplitMix64's finalizer of 4 bytes and their place") {
  const auto hash_of = [](const at::Tensor& tensor) {
    const auto result = torch::full({1}, 7, at::kLong);
    hash_bytes(tensor, result);
    return result.item<std::int64_t>();
  };
  // By a few lines of Python; the 7 bytes also from an address that is not aligned.
  const auto bytes = torch::arange(17, at::kByte);
  CHECK(hash_of(bytes.narrow(0, 0, 0)) == 0);
  CHECK(hash_of(bytes.narrow(0, 0, 1)) == -2152535657050944081);
  CHECK(hash_of(bytes.narrow(0, 0, 7)) == 3655285632421463141);
  CHECK(hash_of((bytes - 1).narrow(0, 1, 7)) == 3655285632421463141);
  CHECK(hash_of(bytes.narrow(0, 0, 16)) == -217822581799648368);
  auto values = torch::randn({1000});
  const auto before = hash_of(values);
  values.view(at::kInt)[999].bitwise_xor_(1);
  CHECK(hash_of(values) != before);
  values.view(at::kInt)[999].bitwise_xor_(1);
  CHECK(hash_of(values) == before);
  CHECK(hash_of(values.flip({0})) != before);
  CHECK_THROWS_AS(hash_of(values.view({10, 100}).t()), Error);
}
