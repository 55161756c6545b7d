#include "strategies/hooks/comm_hooks.hpp"

#include "actors/strategy/strategy.hpp"
#include "strategies/hooks/power_sgd.hpp"

namespace troupe {
namespace {

class Average final : public CommHook {
 public:
  bool keeps_state() const override { return false; }
  void reduce(BucketView& bucket, Communicator& communicator) override {
    // NCCL has NVLS and symmetric kernels for sums alone; of f16 a sum overflows where the average would not.
    const bool sums = bucket.checks.defined() && bucket.flat.scalar_type() != at::kHalf;
    communicator.all_reduce(bucket.flat, sums ? ReduceOp::sum : ReduceOp::avg, bucket.label);
    if (sums) bucket.scale = 1.0 / communicator.world_size();
  }
};

/// Divides before the sum, so that f16 does not overflow where the average would not.
class HalfPrecision final : public CommHook {
 public:
  bool keeps_state() const override { return false; }
  explicit HalfPrecision(at::ScalarType wire) : wire_dtype_(wire) {}

  void reduce(BucketView& bucket, Communicator& communicator) override {
    torch::NoGradGuard no_grad;
    if (bucket.flat.element_size() <= 2) {
      communicator.all_reduce(bucket.flat, ReduceOp::avg, bucket.label);
      return;
    }
    const auto numel = bucket.flat.numel();
    // One buffer for all buckets: they come one after the other. Collective, so that it needs no staging; every rank
    // sees the same buckets. A replaced rank's begins with the generation, so that of the others does too. Its
    // communicator is another one, which the ledger shows.
    if (const auto ledger = communicator.shared_ledger(); ledger != ledger_) {
      wire_ = at::Tensor();
      ledger_ = ledger;
    }
    if (!wire_.defined() || wire_.numel() < numel) wire_ = communicator.allocate(numel, wire_dtype_);
    const auto wire = wire_.narrow(0, 0, numel);
    bucket.flat.mul_(1.0 / communicator.world_size());
    wire.copy_(bucket.flat);
    communicator.all_reduce(wire, ReduceOp::sum, bucket.label);
    bucket.flat.copy_(wire);
  }

 private:
  at::ScalarType wire_dtype_;
  at::Tensor wire_;
  std::shared_ptr<CollectiveLedger> ledger_;  // of the communicator that wire_ is of
};

}  // namespace

void register_comm_hooks() {
  register_comm_hook("none", [](const StrategyOptions&) { return std::make_shared<Average>(); });
  register_comm_hook("fp16", [](const StrategyOptions&) { return std::make_shared<HalfPrecision>(at::kHalf); });
  register_comm_hook("bf16", [](const StrategyOptions&) { return std::make_shared<HalfPrecision>(at::kBFloat16); });
  register_comm_hook("powersgd", [](const StrategyOptions& options) {
    return std::make_shared<PowerSgd>(options.powersgd_rank, options.powersgd_start_step);
  });
}

}  // namespace troupe
