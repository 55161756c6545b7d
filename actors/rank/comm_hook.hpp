#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/rank/strategy_options.hpp"
#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// One bucket as a hook sees it. The tensors are views of live memory.
struct BucketView {
  std::int32_t index = 0;
  std::int64_t step = 0;
  bool is_last = false;
  std::string label;                  // "bucket 3", for the ledger
  at::Tensor flat;                    // (numel,), the gradients of this rank in, their average over all ranks out
  std::vector<at::Tensor> gradients;  // one per parameter, views of `flat` in the parameter's shape
  std::vector<std::string> names;     // of the parameters
  /// On a device, else empty: `flat` holds this step's gradients after `ready`, which backward marks before BucketReady
  /// is sent, and their average after `reduced`, which the reducer marks before BucketsReduced is.
  std::shared_ptr<DeviceEvent> ready, reduced;
  /// On a device, else undefined: (2,) f64 there, what scale_and_check says of `flat` after the hook.
  at::Tensor checks;
  /// A hook on a device may leave it to the check to multiply `flat` by this.
  double scale = 1;
};

/// How a bucket becomes the average over all ranks. Reducer's thread; every rank calls it for the same buckets in the
/// same order, so that it may launch any collectives as long as they are the same everywhere.
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// Turns `bucket.flat` from the gradients of this rank into their average over all ranks.
  virtual void reduce(BucketView& bucket, Communicator& communicator) = 0;
  /// The reducer has failed, in this hook or elsewhere: whoever waits for what `reduce` would do is to be freed.
  /// Reducer's thread.
  virtual void give_up() noexcept {}
  /// What must be in a checkpoint for a bit-equal resume (error feedback). Called between steps.
  virtual NamedTensors state() { return {}; }
  /// Takes back what `state` returned.
  virtual void load_state(const NamedTensors&) {}
  /// `step` was given up after some or all of its buckets were reduced, and comes again or is skipped: the state goes
  /// back to what it was before it. Called between steps.
  virtual void roll_back(std::int64_t step) {}
  /// Members leave between two steps, and with them what they owe: collective of all, after which each owes the mean of
  /// what all did. Compute's thread.
  virtual void hand_over(Communicator&) {}
};

/// Makes a rank's hook.
using CommHookFactory = std::function<std::shared_ptr<CommHook>(const StrategyOptions&)>;

}  // namespace troupe
