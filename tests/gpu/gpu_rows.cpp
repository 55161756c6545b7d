// The rows of docs/gpu.md that are numbers of our own: `gpu_rows` prints all of them, `gpu_rows NAME` those of kernels,
// ddp, optimizer, overlap or abort. `gpu_rows versions` prints those of CUDA and NCCL; `gpu_rows once` launches each
// kernel once, for a profiler.
#include "tensor_io/communicator/nccl/nccl_communicator.hpp"
#include "tensor_io/device/device_kernels.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tests/gpu/gpu.hpp"
#include "tests/gpu/rows.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using namespace troupe::test;
using namespace troupe::testing;

namespace {

at::TensorOptions f32() { return at::TensorOptions().dtype(at::kFloat).device(torch::kCUDA); }

// Sources of equal size, and the bucket they go into.
struct Packed {
  std::vector<at::Tensor> sources;
  std::vector<std::int64_t> offsets;
  at::Tensor bucket;

  Packed(int count, std::int64_t numel) : bucket(torch::empty({count * numel}, f32())) {
    for (int i = 0; i < count; ++i) {
      sources.push_back(torch::randn({numel}, f32()));
      offsets.push_back(i * numel);
    }
  }
  void pack() const { troupe::pack(bucket, sources, offsets); }
  void copy() const {
    for (std::size_t i = 0; i < sources.size(); ++i) bucket.narrow(0, offsets[i], sources[i].numel()).copy_(sources[i]);
  }
};

constexpr int kItems = 64;
constexpr std::int64_t kItemNumel = (25LL << 18) / kItems;  // 25 MiB together
constexpr std::int64_t kEmbeddingNumel = 50257LL * 768;     // GPT-124M's, 154 MB

void pack_row(const char* name, int times, const Packed& packed) {
  const auto found = in_turns(
      times, [&] { packed.pack(); }, [&] { packed.copy(); });
  row(name, text("%.1f us", 1e6 * found.ours), text("%.1f us", 1e6 * found.other), found.ratio, "1.0");
}

void kernels() {
  const Packed many(kItems, kItemNumel);
  pack_row("pack of 64 gradients, 25 MiB, beside 64 copies", 200, many);
  pack_row("pack of one gradient of 154 MB, beside one copy", 20, Packed(1, kEmbeddingNumel));
  const auto& bucket = many.bucket;
  const auto result = torch::zeros({2}, f32().dtype(at::kDouble));
  const auto checked = in_turns(
      200, [&] { scale_and_check(bucket, 1, result); },
      [&] { result[0].copy_(bucket.square().sum()), result[1].copy_(bucket.isfinite().logical_not().sum()); });
  row("norm and finite check of 25 MiB, beside LibTorch's operators", text("%.1f us", 1e6 * checked.ours),
      text("%.1f us", 1e6 * checked.other), checked.ratio, "1.0");
}

void once() {
  const Packed many(kItems, kItemNumel), one(1, kEmbeddingNumel);
  many.pack();
  one.pack();
  scale_and_check(many.bucket, 1, torch::zeros({2}, f32().dtype(at::kDouble)));
  torch::cuda::synchronize();
}

void versions() { std::printf("%s\n", accelerator()->versions().c_str()); }

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
  if (!errors[0].empty()) throw std::runtime_error(errors[0]);
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
    const auto start = std::chrono::steady_clock::now();
    communicator->abort({ErrorCode::aborted, 0, {}, -1, {}, "on purpose", {}});
    communicator.reset();  // waits for NCCL's own abort
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  row("abort of a communicator, to its end", text("%.3f s", median(times)), "", median(times), "1 s");
}

void ddp_rows() {
  ddp_overhead(4096, "ddp of one rank beside the bare loop, 8 x Linear(1024), batch 4096");
  ddp_overhead(64, "ddp of one rank beside the bare loop, 8 x Linear(1024), batch 64");
}

}  // namespace

int main(int argc, char** argv) {
  troupe::test::need_devices(1);
  const std::pair<const char*, void (*)()> all[] = {{"kernels", kernels},
                                                    {"ddp", ddp_rows},
                                                    {"optimizer", optimizer_rows},
                                                    {"overlap", overlap_rows},
                                                    {"abort", abort_time},
                                                    {"versions", versions},
                                                    {"once", once}};
  int failed = 0;
  for (const auto& [name, rows] : all) {
    if (argc > 1 && std::string(argv[1]) != name) continue;
    try {
      rows();
    } catch (const std::exception& error) {  // the others' rows are of use all the same
      std::printf("| %s | FAILED | | | |\n", name);
      std::fprintf(stderr, "gpu_rows %s: %s\n", name, error.what());
      failed = 1;
    }
  }
  return failed;
}
