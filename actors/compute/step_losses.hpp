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
  /// Of a mean: this rank's share of the global batch times world size, 1 where all ranks have as many samples. 0: it
  /// counts nothing.
  double weight = 1;
};

/// On a device: what a micro-batch's loss was, until the vote needs it.
struct DeviceLoss {
  at::Tensor value;    // () there
  at::Tensor correct;  // the same; undefined where the host knows it
  double samples = 0;
  bool counts = true, has_correct = false;
};

/// Counts a step's losses into this rank's vote, and knows what a loss is multiplied with before backward. Compute's
/// thread.
class StepLosses {
 public:
  /// `vote`: this rank's, of the step under way; outlives this.
  StepLosses(ComputeCore& core, Vote& vote) : core_(core), vote_(vote) {}

  /// About how many elements a step's batch has. Gradients of sums are reduced divided by it, so that half precision
  /// holds them, and get the exact factor with the vote. The same on all ranks.
  void expect_elements(double elements) noexcept { expected_elements_ = elements; }
  /// Why a loss can't be a sum in this job: what uses the gradient before the ranks' counts are known; nullptr: it can.
  void refuse_sums(const char* why) noexcept { sums_refused_ = why; }

  /// A step begins, and `vote` is empty.
  void begin();
  void check_is_scalar(const at::Tensor& loss) const;
  /// Throws Error(usage) for what is no scalar, and for a sum where the step has a mean already or the other way round.
  void check(const Loss& loss) const;
  /// This rank's samples are no other's, too.
  bool counts() const;
  void count(const MicroBatchLoss& micro_batch);
  void count_value(double value, double samples, bool counts);
  /// Where the host decides on the step.
  double backward_factor(const MicroBatchLoss& micro_batch);
  /// NaN where the chaos of a test wants this backward so; once.
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
