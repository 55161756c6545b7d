// The rows of docs/gpu.md that are numbers: `gpu_rows` prints them as lines of a Markdown table. Medians of blocks taken in turns.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tensor_io/device_kernels.hpp"
#include "tensor_io/device_stream.hpp"
#include "tensor_io/nccl_communicator.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kBlocks = 7;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds of `times` calls, the device's end included.
double seconds(int times, const std::function<void()>& work) {
  torch::cuda::synchronize();
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) work();
  torch::cuda::synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count() / times;
}

struct Pair {
  double ours, other, ratio;
};

Pair in_turns(int times, const std::function<void()>& ours, const std::function<void()>& other) {
  for (int i = 0; i < 3; ++i) ours(), other();
  std::vector<double> a, b, ratio;
  for (int block = 0; block < kBlocks; ++block) {
    a.push_back(seconds(times, ours));
    b.push_back(seconds(times, other));
    ratio.push_back(a.back() / b.back());
  }
  return {median(a), median(b), median(ratio)};
}

void row(const char* name, const std::string& ours, const std::string& other, double ratio, const char* target) {
  std::printf("| %s | %s | %s | %.3f | %s |\n", name, ours.c_str(), other.c_str(), ratio, target);
  std::fflush(stdout);
}

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

void kernels() {
  const auto f32 = at::TensorOptions().dtype(at::kFloat).device(torch::kCUDA);
  const std::int64_t numel = 25LL << 18;  // 25 MiB
  std::vector<at::Tensor> sources;
  std::vector<std::int64_t> offsets;
  for (int i = 0; i < 64; ++i) {
    sources.push_back(torch::randn({numel / 64}, f32));
    offsets.push_back(i * (numel / 64));
  }
  const auto bucket = torch::empty({numel}, f32);
  const auto packed = in_turns(
      200, [&] { pack(bucket, sources, offsets); },
      [&] {
        for (int i = 0; i < 64; ++i)
          bucket.narrow(0, offsets[static_cast<std::size_t>(i)], numel / 64).copy_(sources[static_cast<std::size_t>(i)]);
      });
  row("pack of 64 gradients, 25 MiB, beside 64 copies", text("%.1f us", 1e6 * packed.ours), text("%.1f us", 1e6 * packed.other),
      packed.ratio, "1.0");
  const auto result = torch::zeros({2}, f32.dtype(at::kDouble));
  const auto checked = in_turns(
      200, [&] { scale_and_check(bucket, 1, result); },
      [&] { result[0].copy_(bucket.square().sum()), result[1].copy_(bucket.isfinite().logical_not().sum()); });
  row("norm and finite check of 25 MiB, beside LibTorch's operators", text("%.1f us", 1e6 * checked.ours),
      text("%.1f us", 1e6 * checked.other), checked.ratio, "1.0");
}

struct WideMlpImpl : torch::nn::Module {
  WideMlpImpl() {
    for (int i = 0; i < 8; ++i) layers->push_back(torch::nn::Linear(1024, 1024)), layers->push_back(torch::nn::ReLU());
    register_module("layers", layers);
  }
  torch::nn::Sequential layers;
};

// ddp of one rank beside the bare loop, in turns on one device: what hooks, buckets, messages and the vote cost.
void ddp_overhead(std::int64_t batch, const char* name) {
  const at::Device device(at::kCUDA, 0);
  auto cluster = ddp_cluster(1);
  cluster.options.device = device;
  cluster.options.training.verify_every = 0;
  Pair times{};
  const auto errors = cluster.run([&](RankSystem& system) {
    const auto ours = make_seeded<WideMlpImpl>(1), bare = make_seeded<WideMlpImpl>(1);
    ours->to(device), bare->to(device);
    auto& compute = system.compute();
    compute.distribute(ours);
    OptimizerOptions options;
    options.optimizer = "adamw";
    const auto optimizer = make_optimizer(options, one_group(*ours)), plain = make_optimizer(options, one_group(*bare));
    const auto input = torch::randn({batch, 1024}, device);
    times = in_turns(
        20,
        [&] {
          compute.seed_forward();
          compute.backward(ours->layers->forward(input).square().mean(), static_cast<double>(batch));
          compute.step(*optimizer, 1e-4);
        },
        [&] {
          bare->zero_grad();
          bare->layers->forward(input).square().mean().backward();
          plain->step(1e-4);
        });
  });
  if (!errors[0].empty()) {
    std::fprintf(stderr, "%s: %s\n", name, errors[0].c_str());
    std::exit(1);
  }
  row(name, text("%.3f ms", 1e3 * times.ours), text("%.3f ms", 1e3 * times.other), times.ratio, "1.01");
}

void abort_time() {
  std::vector<double> times;
  for (int i = 0; i < kBlocks; ++i) {
    CommunicatorOptions options;
    options.backend = "nccl";
    options.device = {at::kCUDA, 0};
    options.name = "abort" + std::to_string(i);
    auto communicator = make_nccl_communicator(options);
    const auto tensor = torch::ones({1000}, at::TensorOptions().device(options.device));
    communicator->all_reduce(tensor);
    communicator->wait_on_host();
    const auto start = Clock::now();
    communicator->abort({ErrorCode::aborted, 0, {}, -1, {}, "on purpose", {}});
    communicator.reset();  // waits for NCCL's own abort
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  row("abort of a communicator, to its end", text("%.3f s", median(times)), "", median(times), "1 s");
}

}  // namespace

int main() {
  troupe::test::need_devices(1);
  kernels();
  ddp_overhead(4096, "ddp of one rank beside the bare loop, 8 x Linear(1024), batch 4096");
  ddp_overhead(64, "ddp of one rank beside the bare loop, 8 x Linear(1024), batch 64");
  abort_time();
}
