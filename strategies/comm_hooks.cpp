#include "strategies/comm_hooks.hpp"

#include "actors/strategy.hpp"

namespace troupe {
namespace {

class Average final : public CommHook {
 public:
  void reduce(BucketView& bucket, Communicator& communicator) override {
    communicator.all_reduce(bucket.flat, ReduceOp::avg, bucket.label);
  }
};

/// Sends half the bytes. Divides before the sum, so that f16 does not overflow where the average would not.
class HalfPrecision final : public CommHook {
 public:
  explicit HalfPrecision(at::ScalarType wire) : wire_(wire) {}
  void reduce(BucketView& bucket, Communicator& communicator) override {
    torch::NoGradGuard no_grad;
    auto compressed = (bucket.flat / communicator.world_size()).to(wire_);
    communicator.all_reduce(compressed, ReduceOp::sum, bucket.label);
    bucket.flat.copy_(compressed);
  }

 private:
  at::ScalarType wire_;
};

}  // namespace

void register_comm_hooks() {
  register_comm_hook("none", [](const StrategyOptions&) { return std::make_shared<Average>(); });
  register_comm_hook("fp16", [](const StrategyOptions&) { return std::make_shared<HalfPrecision>(at::kHalf); });
  register_comm_hook("bf16", [](const StrategyOptions&) { return std::make_shared<HalfPrecision>(at::kBFloat16); });
}

}  // namespace troupe
