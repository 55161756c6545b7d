#pragma once
#include <cstdint>
#include <vector>

#include "actors/compute/compute_core.hpp"
#include "actors/step/loss.hpp"
#include "actors/step/vote.hpp"

namespace troupe {

struct MicroBatchLoss {
  Loss loss;
  double samples = 0;  ///< of the micro-batch
  /// Of a mean: this rank's share of the global batch times the world size; 1 if all ranks have equally many samples.
  /// 0: it counts nothing.
  double weight = 1;
};

/// A micro-batch's loss on a device, until the vote needs it.
struct DeviceLoss {
  at::Tensor value;    // () there
  at::Tensor correct;  // the same; undefined if the host knows it
  double samples = 0;
  bool counts = true, has_correct = false;
};

/// Counts a step's losses into this rank's vote, and knows the factor of a loss before backward. Compute's
/// thread.
class StepLosses {
 public:
  /// `vote`: this rank's, of the step under way; outlives this.
  StepLosses(ComputeCore& core, Vote& vote) : core_(core), vote_(vote) {}

  /// About how many elements a step's batch has. Gradients of sums are reduced divided by it, so that half precision
  /// holds them, and get the exact factor with the vote. The same on all ranks.
  void expect_elements(double elements) noexcept { expected_elements_ = elements; }
  /// Why a loss can't be a sum: a setting needs the gradient before the ranks' counts are known; nullptr: it can be.
  void refuse_sums(const char* why) noexcept { sums_refused_ = why; }

  /// A step begins, and `vote` is empty.
  void begin();
  void check_is_scalar(const at::Tensor& loss) const;
  /// Throws Error(usage) for what is no scalar, for a sum in a step that has a mean already, and for the reverse.
  void check(const Loss& loss) const;
  /// False if another rank counts the same samples.
  bool counts() const;
  void count(const MicroBatchLoss& micro_batch);
  void count_value(double value, double samples, bool counts);
  /// The loss's factor if the host decides on the step.
  double backward_factor(const MicroBatchLoss& micro_batch);
  /// `weight`, or once NaN if a test's chaos wants this backward so.
  double weight_or_poison(double weight);

  /// Those on the device, which are not in the vote yet.
  std::vector<DeviceLoss> take_device_losses() { return std::exchange(device_losses_, {}); }

 private:
  ComputeCore& core_;
  Vote& vote_;
  std::vector<DeviceLoss> device_losses_;
  double expected_elements_ = 1;  // of a step
  const char* sums_refused_ = nullptr;
};

}  // namespace troupe
