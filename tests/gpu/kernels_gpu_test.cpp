// What needs a GPU. Each test says so, and exits with 77, where there is none.
#include <torch/torch.h>

#include "tensor_io/data/device_feed.hpp"
#include "tensor_io/device/device_kernels.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tests/catch.hpp"
#include "tests/gpu/gpu.hpp"

using namespace troupe;
using namespace troupe::test;

TEST_CASE("[T01] gpu: pack has the bits of its twin on the CPU", "[gpu][kernels][sanitized]") {
  need_devices(1);
  const auto to = GENERATE(at::kFloat, at::kHalf, at::kBFloat16);
  const auto from = GENERATE(at::kFloat, at::kHalf, at::kBFloat16);
  torch::manual_seed(1);
  std::vector<at::Tensor> sources, on_device;
  std::vector<std::int64_t> offsets;
  std::int64_t end = 0;
  for (int i = 0; i < 150; ++i) {  // three launches
    sources.push_back(torch::randn({i * i * 7 + i % 3}).to(from));
    on_device.push_back(sources.back().to(torch::kCUDA));
    offsets.push_back(end);
    end += (sources.back().numel() + 31) / 32 * 32;
  }
  const auto bucket = torch::full({end + 1}, 7.0, to);
  const auto there = bucket.to(torch::kCUDA);
  pack(bucket, sources, offsets, 0.125);
  pack(there, on_device, offsets, 0.125);
  CHECK(torch::equal(bucket, there.cpu()));
}

TEST_CASE("[T01] gpu: one pass scales with the CPU's bits, and finds its norm and what is not finite",
          "[gpu][kernels]") {
  need_devices(1);
  const auto dtype = GENERATE(at::kFloat, at::kHalf, at::kBFloat16);
  const std::int64_t numel = GENERATE(0, 1, 255, 100'003, 10'000'019);
  torch::manual_seed(2);
  const auto flat = torch::randn({numel}).to(dtype);
  const auto there = flat.to(torch::kCUDA);
  const auto result = torch::zeros({2}, at::kDouble), result_there = result.to(torch::kCUDA);
  scale_and_check(flat, 0.5, result);
  scale_and_check(there, 0.5, result_there);
  CHECK(torch::equal(flat, there.cpu()));
  const auto first = result_there.cpu().clone();
  // The CPU adds one by one, and is off by more than the device; both are near LibTorch's sum by halves.
  const auto squares = flat.to(at::kDouble).square().sum().item<double>();
  CHECK(first[0].item<double>() == Approx(squares).epsilon(1e-14));
  CHECK(result[0].item<double>() == Approx(squares).epsilon(1e-11));
  CHECK(first[1].item<double>() == 0);
  for (int again = 0; again < 5; ++again) {
    scale_and_check(there, 1, result_there);
    CHECK(torch::equal(result_there.cpu(), first));  // the same bits each time
  }
  if (numel < 3) return;
  there[2] = std::nan("");
  scale_and_check(there, 1, result_there);
  CHECK(result_there[1].item<double>() == 1);
}

TEST_CASE("[T01] gpu: the hash of a tensor's bytes is the CPU's", "[gpu][kernels][sanitized]") {
  need_devices(1);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kByte);
  const std::int64_t numel = GENERATE(0, 1, 5, 100'003, 10'000'019);
  torch::manual_seed(3);
  const auto bytes = torch::randn({numel + 1}).to(dtype);
  const auto begin = GENERATE(0, 1);  // not aligned to 4 bytes
  const auto here = bytes.narrow(0, begin, numel), there = bytes.to(torch::kCUDA).narrow(0, begin, numel);
  const auto hash = torch::zeros({1}, at::kLong), hash_there = hash.to(torch::kCUDA);
  hash_bytes(here, hash);
  hash_bytes(there, hash_there);
  CHECK(torch::equal(hash, hash_there.cpu()));
}

TEST_CASE("[L03] gpu: a dropout's mask has the bits of its twin on the CPU, in a stream, without a wait",
          "[gpu][kernels]") {
  need_devices(1);
  const std::int64_t numel = GENERATE(0, 1, 3, 4, 1023, 10'000'019);
  const double p = GENERATE(0.1, 0.5, 1.0);
  const auto waits = host_waits();
  const auto there = dropout_mask({numel}, p, 0x0123456789abcdef, 7, {at::kCUDA, 0});
  CHECK(host_waits() == waits);
  CHECK(torch::equal(dropout_mask({numel}, p, 0x0123456789abcdef, 7), there.cpu()));
}

TEST_CASE("[L03] gpu: batches that are sent ahead arrive whole", "[gpu][kernels]") {
  need_devices(1);
  const DeviceFeed feed({at::kCUDA, 0});
  std::vector<Batch> batches, sent;
  for (int i = 0; i < 20; ++i) {
    Batch batch;
    batch.input = torch::full({256, 3, 32, 32}, i);
    batch.target = torch::full({256}, i, at::kLong);
    batch.named = {{"mask", torch::full({256, 3}, i)}};
    sent.push_back(feed.send(batch));
    batches.push_back(std::move(batch));
  }
  for (int i = 0; i < 20; ++i) {
    DeviceFeed::receive(sent[static_cast<std::size_t>(i)]);
    const auto sum = sent[static_cast<std::size_t>(i)].input.sum() + sent[static_cast<std::size_t>(i)]["mask"].sum();
    sent[static_cast<std::size_t>(i)] = {};  // its memory may go to the next
    CHECK(sum.item<double>() == 256.0 * 3 * (32 * 32 + 1) * i);
  }
}
