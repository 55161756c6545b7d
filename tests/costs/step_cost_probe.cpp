// What a step of ddp costs, in numbers that no clock gives: allocations, copies, instructions (under callgrind).
// check_costs.py runs it.
//
//   step_cost_probe RANKS STEPS LAYERS one|each [MODEL]
//
// LAYERS x Linear(48), all in one bucket or each in one of its own. MODEL: the same model and loss, compiled. Prints a
// JSON line: by step after the first ones, the most that any rank's reducer allocated between two steps' last buckets,
// that its loader allocated beyond the data set's own, and how often a step copied each gradient. Callgrind counts from
// step kCountFrom on.
#include <errno.h>
#include <malloc.h>
#include <valgrind/callgrind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include <ATen/record_function.h>

#include "tensor_io/data/datasets.hpp"
#include "tests/support/run_program.hpp"
#include "troupe/compiled.hpp"

namespace {
thread_local std::int64_t allocations = 0;
}

// In the place of glibc's, for the whole program: its own are behind them.
extern "C" {
// NOLINTNEXTLINE: a name that others gave
void* __libc_malloc(std::size_t);
// NOLINTNEXTLINE: a name that others gave
void* __libc_calloc(std::size_t, std::size_t);
// NOLINTNEXTLINE: a name that others gave
void* __libc_realloc(void*, std::size_t);
// NOLINTNEXTLINE: a name that others gave
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  ++allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) {
  ++allocations;
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  ++allocations;
  *out = __libc_memalign(alignment, bytes);
  return *out != nullptr ? 0 : ENOMEM;
}
}

namespace {

using namespace troupe;

constexpr std::int64_t kWidth = 48, kSamples = 8, kWarmUp = 10, kCountFrom = 30;
std::atomic<std::int64_t> copies{0};  // of gradients

// The largest step from one number to the next, after the first ones.
class Growth {
 public:
  void at(std::int64_t count) {
    if (seen_++ > kWarmUp) most_ = std::max(most_, count - last_);
    last_ = count;
  }
  std::int64_t most() const { return most_; }

 private:
  std::int64_t seen_ = 0, last_ = 0, most_ = 0;
};

class CountingHook final : public CommHook {
 public:
  void reduce(BucketView& bucket, Communicator& communicator) override {
    communicator.all_reduce(bucket.flat, ReduceOp::avg, bucket.label);
    if (bucket.is_last) growth.at(allocations);
  }
  Growth growth;  // reducer's thread
};

// Not quick, so that the loader's own thread makes the batches.
class CountingDataset final : public Dataset {
 public:
  CountingDataset() : points_(at::ones({4096, kWidth}), at::zeros({4096}, at::kLong)) {}
  std::int64_t size() const override { return points_.size(); }
  Example get(std::int64_t index, const SampleContext& context) const override { return points_.get(index, context); }
  Batch get_batch(std::span<const std::int64_t> indices, const SampleContext& context) const override {
    const auto before = allocations;
    auto batch = points_.get_batch(indices, context);
    std::lock_guard lock(mutex_);
    auto& [growth, own] = threads_[std::this_thread::get_id()];
    growth.at(before - own);
    own += allocations - before;
    return batch;
  }
  std::int64_t most() const {
    std::lock_guard lock(mutex_);
    std::int64_t most = 0;
    for (const auto& [id, thread] : threads_) most = std::max(most, thread.first.most());
    return most;
  }

 private:
  TensorDataset points_;
  mutable std::mutex mutex_;
  mutable std::map<std::thread::id, std::pair<Growth, std::int64_t>> threads_;
};

// What is as large as a gradient and copied or added up in one of LibTorch's operators.
void count_copies() {
  at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        const std::string name = function.name();
        if (name != "aten::copy_" && name != "aten::clone" && name != "aten::add_") return nullptr;
        const auto inputs = function.inputs();
        if (!inputs.empty() && inputs[0].isTensor() && inputs[0].toTensor().numel() == kWidth * kWidth) ++copies;
        return nullptr;
      })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}

int run(int ranks, std::int64_t steps, int layers, bool one_bucket, const char* compiled) {
  std::mutex mutex;
  std::vector<std::shared_ptr<CountingHook>> hooks;
  register_comm_hook("counting", [&](const StrategyOptions&) {
    std::lock_guard lock(mutex);
    return hooks.emplace_back(std::make_shared<CountingHook>());
  });
  Config config;
  config.comm_hook = "counting";
  config.bucket_cap_mb = config.first_bucket_mb = one_bucket ? 1024 : 1e-6;
  config.batch_size = kSamples * ranks;
  config.max_steps = steps;
  config.epochs = 1000;
  config.lr = 1e-6;
  const auto data = std::make_shared<CountingDataset>();
  std::atomic<std::int64_t> copied{0};
  const auto errors = testing::run_program(ranks, config, [&](Rank& rank) {
    torch::nn::Sequential eager;
    for (int layer = 0; layer < layers; ++layer)
      eager->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    const auto from_file = compiled == nullptr ? nullptr : std::make_shared<CompiledModel>(compiled);
    const auto model = rank.distribute(from_file ? std::shared_ptr<torch::nn::Module>(from_file) : eager.ptr());
    const auto optimizer = rank.make_optimizer(*model);
    for (const auto& batch : rank.loader(data)) {
      if (rank.steps_done() == kWarmUp) {
        rank.barrier();
        if (rank.is_main()) copied = copies.load();
        rank.barrier();
      }
      if (rank.is_main() && rank.steps_done() == kCountFrom) CALLGRIND_START_INSTRUMENTATION;
      rank.backward(from_file ? from_file->loss(batch) : Loss(eager->forward(batch.input).square().mean()));
      rank.step(*optimizer);
    }
    rank.barrier();
    if (rank.is_main()) copied = copies - copied;
  });
  for (const auto& error : errors) {
    if (!error.empty()) return std::fprintf(stderr, "step_cost_probe: %s\n", error.c_str()), 1;
  }
  std::int64_t reducer = 0;
  for (const auto& hook : hooks) reducer = std::max(reducer, hook->growth.most());
  std::printf("{\"reducer_allocations\": %lld, \"loader_allocations\": %lld, \"copies_of_a_gradient\": %.3f}\n",
              static_cast<long long>(reducer), static_cast<long long>(data->most()),
              static_cast<double>(copied) / static_cast<double>(ranks * layers * (steps - kWarmUp)));
  return 0;
}

}  // namespace

// The linker puts these in the place of troupe::copy_and_check and add_and_check (--wrap): what puts a gradient into
// its bucket.
extern "C" {
// NOLINTNEXTLINE: a name that others gave
bool __real__ZN6troupe14copy_and_checkERKN2at6TensorES3_(const at::Tensor& destination, const at::Tensor& source);
// NOLINTNEXTLINE: a name that others gave
bool __wrap__ZN6troupe14copy_and_checkERKN2at6TensorES3_(const at::Tensor& destination, const at::Tensor& source) {
  ++copies;
  return __real__ZN6troupe14copy_and_checkERKN2at6TensorES3_(destination, source);
}
// NOLINTNEXTLINE: a name that others gave
bool __real__ZN6troupe13add_and_checkERKN2at6TensorES3_(const at::Tensor& destination, const at::Tensor& source);
// NOLINTNEXTLINE: a name that others gave
bool __wrap__ZN6troupe13add_and_checkERKN2at6TensorES3_(const at::Tensor& destination, const at::Tensor& source) {
  ++copies;
  return __real__ZN6troupe13add_and_checkERKN2at6TensorES3_(destination, source);
}
}

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6)
    return std::fprintf(stderr, "usage: step_cost_probe RANKS STEPS LAYERS one|each [MODEL]\n"), 2;
  at::set_num_threads(1);
  count_copies();
  return run(std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), std::string(argv[4]) == "one", argv[5]);
}
