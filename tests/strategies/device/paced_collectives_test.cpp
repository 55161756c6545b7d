// The NCCL of docs/gpu.md's rows about exposed communication, on a device that is none: one rank trains with it as
// without, and its collectives are those that the rows count.
#include <mutex>

#include "actors/block/block.hpp"
#include "tests/gpu/paced_nccl.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using namespace troupe::testing;
using troupe::test::FakeDevice;

namespace {

// On the host's memory, where a copy is over when it returns.
class CountedCopy final : public troupe::test::PacedCopy {
 public:
  int copy(const void* input, void* output, std::size_t bytes, std::size_t wire_bytes, bool reduces_all,
           NcclStream) override {
    std::lock_guard lock(mutex);
    if (input != output) std::memcpy(output, input, bytes);
    auto& counted = reduces_all ? all_reduced : moved;
    counted += wire_bytes;
    return 0;
  }
  int allocate(void** data, std::size_t bytes) override {
    *data = ::operator new(bytes, std::align_val_t(64));
    return 0;
  }
  int free(void* data) override {
    ::operator delete(data, std::align_val_t(64));
    return 0;
  }
  std::mutex mutex;
  std::size_t all_reduced = 0, moved = 0;
};

struct PacedUnitImpl : torch::nn::Module {
  PacedUnitImpl(std::int64_t in, std::int64_t out)
      : weight(register_parameter("weight", (torch::randn({out, in}) / 4).to(FakeDevice::device()))),
        bias(register_parameter("bias", torch::zeros({out}).to(FakeDevice::device()))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(torch::nn::functional::linear(x, weight, bias)); }
  at::Tensor weight, bias;
};
TROUPE_BLOCK(PacedUnit);

struct PacedUnitsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return last(middle(first(x))); }
  PacedUnit first = register_module("first", PacedUnit(8, 16)), middle = register_module("middle", PacedUnit(16, 16)),
            last = register_module("last", PacedUnit(16, 3));
};
constexpr std::size_t kParameters = 8 * 16 + 16 + 16 * 16 + 16 + 16 * 3 + 3;

SmallTraining::Result train(const std::string& strategy, const std::shared_ptr<CountedCopy>& copies,
                            std::int64_t steps) {
  FakeDevice::reset();
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  SmallTraining training(strategy, 1);
  training.steps = steps;
  training.optimizer.optimizer = "adamw";
  training.jobs.options.device = FakeDevice::device();
  training.jobs.options.strategy.fsdp_mapped = false;
  if (copies) {
    training.jobs.options.communicator.backend = "nccl";
    training.jobs.options.nccl = std::make_shared<troupe::test::PacedNccl>(copies);
  }
  training.model = [] { return make_seeded<PacedUnitsImpl>(3); };
  training.forward = [](torch::nn::Module& model, const at::Tensor& input) {
    return dynamic_cast<PacedUnitsImpl&>(model).forward(input.to(FakeDevice::device()));
  };
  auto result = training.run();
  REQUIRE(joined(result.errors) == "");
  return result;
}

}  // namespace

TEST_CASE("[L03] one rank with an NCCL that takes its time trains as without, and all of its gradients go through it") {
  const std::string strategy = GENERATE("ddp", "fsdp full_shard", "zero2");
  const auto alone = train(strategy, nullptr, 4);
  const auto few = std::make_shared<CountedCopy>(), many = std::make_shared<CountedCopy>();
  train(strategy, few, 2);
  const auto paced = train(strategy, many, 4);
  CHECK(largest_difference(alone.losses, paced.losses) == 0);
  CHECK(largest_difference(alone.state, paced.state) == 0);
  // Two steps more. Buckets and shards end at 64 bytes, so somewhat more than the parameters' own.
  const auto least = 2 * 4 * kParameters;
  if (strategy == "ddp") {
    const auto reduced = many->all_reduced - few->all_reduced;
    CHECK(reduced >= 2 * least);
    CHECK(reduced <= 3 * least);
  } else {  // gradients are scattered; the parameters are gathered, by fsdp for backward once more
    const auto moved = many->moved - few->moved;
    CHECK(many->all_reduced == few->all_reduced);
    CHECK(moved >= (strategy == "zero2" ? 2 : 3) * least);
    CHECK(moved <= (strategy == "zero2" ? 3 : 4) * least);
  }
}
