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
  /// On a device, else empty. After `ready`, `flat` holds this step's gradients: backward marks it before BucketReady
  /// is sent. After `reduced`, it holds their average: the reducer marks it before BucketsReduced is sent.
  std::shared_ptr<DeviceEvent> ready, reduced;
  /// On a device, else undefined: (2,) f64 there, the result of scale_and_check for `flat` after the hook.
  at::Tensor checks;
  /// A hook on a device may leave it to the check to multiply `flat` by this factor.
  double scale = 1;
};

/// Turns a bucket into the average over all ranks. Reducer's thread. Every rank calls it for the same buckets in the
/// same order, so it may launch any collectives that are the same everywhere.
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// Turns `bucket.flat` from the gradients of this rank into their average over all ranks.
  virtual void reduce(BucketView& bucket, Communicator& communicator) = 0;
  /// False: nothing of a step is left for the next ones, so that none has to go back. With `vote late` the host learns
  /// that a step was skipped when the next one has been reduced.
  virtual bool keeps_state() const { return true; }
  /// The reducer has failed, in this hook or elsewhere: free all threads that wait for a result of `reduce`. Reducer's
  /// thread.
  virtual void give_up() noexcept {}
  /// The state that a checkpoint must have for a bit-equal resume (error feedback). Called between steps.
  virtual NamedTensors state() { return {}; }
  /// Takes the tensors that `state` returned, on the device of the gradients.
  virtual void load_state(const NamedTensors&) {}
  /// `step` was given up after some or all of its buckets were reduced, and comes again or is skipped. The state goes
  /// back to its value before that step. Called between steps.
  virtual void roll_back(std::int64_t step) {}
  /// Members leave between two steps, with an error that they still owe. Collective of all ranks: after it each owes
  /// the mean of all errors. Compute's thread.
  virtual void hand_over(Communicator&) {}
};

/// Makes a rank's hook.
using CommHookFactory = std::function<std::shared_ptr<CommHook>(const StrategyOptions&)>;

}  // namespace troupe
