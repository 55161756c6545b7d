// A small training program that misbehaves on request, for launcher_test.cpp.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "actors/block/block.hpp"
#include "launch/program/job.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/base/trace.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/layers/dropout.hpp"
#include "tests/support/peak_memory.hpp"

namespace {

// Whether this process is to misbehave now.
bool misbehaves(const troupe::Config& config, std::int64_t step) {
  const char *rank = std::getenv("RANK"), *restarts = std::getenv("TROUPE_RESTARTS");
  return rank != nullptr && std::atoi(rank) == config.get<std::int64_t>("fail_rank") &&
         step >= config.get<std::int64_t>("fail_step") &&
         (restarts == nullptr || std::atoi(restarts) < config.get<std::int64_t>("fail_lives"));
}

// Samples, and on the rank that misbehaves a disk that fails or stands still.
class ProbeData final : public troupe::Dataset {
 public:
  ProbeData(const troupe::Config& config, const at::Tensor& input, const at::Tensor& target)
      : samples_(input, target),
        how_(config.get<std::string>("fail_how")),
        load_ms_(config.get<std::int64_t>("probe_load_ms")) {
    misbehaves_ = misbehaves(config, config.get<std::int64_t>("fail_step"));
  }
  std::int64_t size() const override { return samples_.size(); }
  troupe::Example get(std::int64_t index, const troupe::SampleContext& context) const override {
    return samples_.get(index, context);
  }
  std::string name() const override { return samples_.name(); }
  troupe::Batch get_batch(std::span<const std::int64_t> indices, const troupe::SampleContext& context) const override {
    if (misbehaves_ && batches_++ == 5) {
      if (how_ == "load_throw") throw std::runtime_error("the probe's disk is gone");
      if (how_ == "load_stall") std::this_thread::sleep_for(std::chrono::seconds(4));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(load_ms_));
    return samples_.get_batch(indices, context);
  }

 private:
  troupe::TensorDataset samples_;
  std::string how_;
  std::int64_t load_ms_;
  bool misbehaves_ = false;
  mutable std::atomic<int> batches_{0};
};

// What a limit of memory does to a rank: `new` and `tensor` have none left to give, `grow` takes until the kernel ends
// it.
void run_out_of_memory(const std::string& how) {
  constexpr std::size_t kPiece = std::size_t{64} << 20, kPieces = 32;
  std::vector<std::unique_ptr<char[]>> blocks;
  std::vector<at::Tensor> tensors;
  if (how == "new" || how == "tensor") {
    std::ifstream status("/proc/self/statm");
    std::size_t pages = 0;
    status >> pages;
    const rlim_t limit = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + 4 * kPiece;
    const rlimit limits{limit, limit};
    ::setrlimit(RLIMIT_AS, &limits);
  }
  for (std::size_t i = 0; i < kPieces; ++i) {
    if (how == "new") blocks.push_back(std::make_unique<char[]>(kPiece));
    if (how == "tensor") tensors.push_back(torch::ones({static_cast<std::int64_t>(kPiece / sizeof(float))}));
    if (how == "grow") {
      blocks.push_back(std::make_unique<char[]>(kPiece));
      std::memset(blocks.back().get(), 1, kPiece);
    }
  }
}

struct WideImpl : torch::nn::Module {
  torch::nn::Linear linear;
  explicit WideImpl(std::int64_t width) : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(linear(x)); }
};
TROUPE_BLOCK(Wide);

torch::nn::Sequential wide_model(std::int64_t width) {
  torch::nn::Sequential model(torch::nn::Linear(2, width));
  for (int i = 0; i < 16; ++i) model->push_back(Wide(width));
  model->push_back(torch::nn::Linear(width, 2));
  return model;
}

// Batches that the program makes itself; the step's number says which, so that a newcomer has the others'.
void loop_without_loader(const troupe::Job& job, troupe::Rank& rank, torch::nn::Module& model,
                         troupe::Optimizer& optimizer) {
  constexpr std::int64_t kSteps = 16, kSamples = 8;
  const auto data = job.data(rank.config()).train;
  const auto batch_of = [&](std::int64_t step) {
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < kSamples; ++i)
      indices.push_back(((step * rank.world_size() + rank.rank()) * kSamples + i) % data->size());
    return data->get_batch(indices, troupe::SampleContext{rank.config().seed, 0});
  };
  const auto train_on = [&](const troupe::Batch& batch) {
    rank.backward(job.loss(model, batch, rank.config()).value);
    const auto report = rank.step(optimizer);
    if (!report.repeat) return;
    std::printf("the probe's step %d is to be repeated, %d are done\n", static_cast<int>(report.step),
                static_cast<int>(rank.steps_done()));
    std::fflush(stdout);
  };
  if (rank.config().get<std::string>("probe_batches") == "own") {
    while (rank.steps_done() < kSteps) train_on(batch_of(rank.steps_done()));
    return;
  }
  std::vector<troupe::Batch> rest;
  for (auto step = rank.steps_done(); step < kSteps; ++step) rest.push_back(batch_of(step));
  for (const auto& batch : rank.uneven(rest)) train_on(batch);
}

int own_loop(const troupe::Job& job, int argc, char** argv) {
  const auto train = [&](troupe::Rank& rank) {
    const auto model = rank.distribute([&] { return job.model(rank.config()); });
    const auto optimizer = rank.make_optimizer(*model);
    if (rank.config().get<std::string>("probe_batches") != "loader")
      return loop_without_loader(job, rank, *model, *optimizer);
    rank.keep_checkpoints(*optimizer);
    for (const auto& batch : rank.loader(job.data(rank.config()).train)) {
      const auto loss = [&] {
        const troupe::TraceSpan span("the probe's own span");
        return job.loss(*model, batch, rank.config());
      }();
      rank.backward(loss.value, loss.correct);
      (void)rank.step(*optimizer);
    }
  };
  return troupe::main(argc, argv, train, job.declare);
}

}  // namespace

int main(int argc, char** argv) {
  troupe::Job job;
  job.declare = [](troupe::Config& config) {
    config.declare("fail_rank", std::int64_t{-1}, "the rank that misbehaves");
    config.declare("fail_step", std::int64_t{3}, "when");
    config.declare("fail_lives", std::int64_t{1}, "the number of its slot's lives that do; the next one behaves");
    config.declare(
        "fail_how", std::string("throw"),
        "throw, exit, leave, kill, abort, touch (a parameter of the last block), hang, slow, flip, load_throw, "
        "load_stall; new, "
        "tensor: there is no memory; grow: takes all");
    config.declare("pause_ms", std::int64_t{0}, "in every step");
    config.declare("probe_load_ms", std::int64_t{0}, "for every batch, in the loader");
    config.declare(
        "probe_model", std::string("ours"),
        "ours; norm: LibTorch's dropout, and a validation; plain: neither norm nor dropout; wide: 16 blocks");
    config.declare("probe_width", std::int64_t{2048}, "of a wide model's blocks");
    config.declare("probe_own_loop", false, "the program has the loop, and catches nothing");
    config.declare("probe_batches", std::string("loader"), "of a loop of one's own: loader, own or uneven");
    config.declare("probe_reads", false, "the model's constructor asks for a parameter's address");
  };
  // With what depends on the rank: statistics of its own samples, random numbers.
  std::optional<troupe::testing::PeakMemory> peak;
  job.model = [&peak](const troupe::Config& config) -> std::shared_ptr<torch::nn::Module> {
    // Whoever reads the output knows from it that a process is still the same.
    if (std::getenv("TROUPE_SLOT") != nullptr) std::printf("pid %d\n", static_cast<int>(::getpid()));
    std::fflush(stdout);
    const bool stock = config.get<std::string>("probe_model") == "norm";
    if (config.get<std::string>("probe_model") == "plain")
      return torch::nn::Sequential(torch::nn::Linear(2, 16), torch::nn::Tanh(), torch::nn::Linear(16, 2)).ptr();
    if (config.get<std::string>("probe_model") == "wide") {
      peak.emplace();
      auto model = wide_model(config.get<std::int64_t>("probe_width"));
      if (config.get<bool>("probe_reads")) *static_cast<float*>(model->parameters()[2].data_ptr()) = 0;
      return model.ptr();
    }
    torch::nn::Sequential model(torch::nn::Linear(2, 16), troupe::nn::BatchNorm(16), torch::nn::Tanh());
    if (stock) {
      model->push_back(torch::nn::Dropout(0.2));
      model->push_back(torch::nn::Linear(16, 16));  // so that there are several buckets
      model->push_back(torch::nn::Tanh());
    } else {
      model->push_back(troupe::nn::Dropout(0.2));
    }
    model->push_back(torch::nn::Linear(16, 2));
    return model.ptr();
  };
  job.data = [&peak](const troupe::Config& config) {
    if (peak) std::printf("peak %d MiB\n", static_cast<int>(peak->mib()));  // the model is built and distributed
    std::fflush(stdout);
    const auto make = [&](std::int64_t n, std::uint64_t seed) {
      const auto input = torch::randn({n, 2}, at::detail::createCPUGenerator(seed));
      return std::make_shared<ProbeData>(config, input, (input.select(1, 0) > 0).to(torch::kLong));
    };
    return troupe::Datasets{make(256, 5), config.get<std::string>("probe_model") == "norm" ? make(64, 6) : nullptr};
  };
  job.loss = [](torch::nn::Module& model, const troupe::Batch& batch, const troupe::Config& config) {
    const auto step = batch.epoch * (256 / config.batch_size) + batch.step;
    if (misbehaves(config, step) && step == config.get<std::int64_t>("fail_step")) {
      const auto how = config.get<std::string>("fail_how");
      if (how == "exit") _exit(7);
      if (how == "leave") _exit(0);
      if (how == "kill") ::kill(::getpid(), SIGKILL);
      if (how == "abort") std::abort();
      if (how == "touch") (void)model.parameters()[32].sum().item<float>();
      while (how == "hang") ::pause();
      if (how == "new" || how == "tensor" || how == "grow") run_out_of_memory(how);
      if (how == "throw") throw std::runtime_error("the probe was told to throw");
    }
    auto pause = std::chrono::milliseconds(config.get<std::int64_t>("pause_ms"));
    if (const auto how = config.get<std::string>("fail_how"); model.is_training() && misbehaves(config, step)) {
      if (how == "slow") pause *= 3;
      static bool flipped = false;
      if (how == "flip" && !std::exchange(flipped, true)) {
        auto* bits = static_cast<std::uint32_t*>(model.parameters()[0].data_ptr());
        bits[3] ^= 1u << 12;
      }
    }
    std::this_thread::sleep_for(pause);
    return troupe::Loss(torch::nn::functional::cross_entropy(
        model.as<torch::nn::SequentialImpl>()->forward(batch.input), batch.target));
  };
  if (std::find(argv, argv + argc, std::string("--probe_own_loop")) != argv + argc) return own_loop(job, argc, argv);
  return troupe::run(job, argc, argv);
}
