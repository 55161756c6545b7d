#pragma once
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>

#include "actors/metrics/metrics.hpp"
#include "launch/loop/rank.hpp"

namespace troupe {

/// The best held-out accuracy of a run, 0 to 1, and the step that it was measured after. It is in Compute::notes, which
/// newcomers get with the model.
struct BestAccuracy {
  double value = -1;       ///< -1: none yet
  std::int64_t step = -1;  ///< -1: it is an earlier run's, which this one goes on from
  static BestAccuracy of(Compute& compute);
  void keep(Compute& compute) const;
};

/// Held-out data, which all ranks run through the model together: every sample once, each rank a part. Compute's
/// thread.
class Validation {
 public:
  /// `loss` is called in eval mode, without gradients.
  Validation(Rank& rank, torch::nn::Module& model, std::shared_ptr<const Dataset> held_out,
             std::function<Loss(const Batch&)> loss)
      : rank_(rank), model_(model), held_out_(std::move(held_out)), loss_(std::move(loss)) {}
  /// Collective. Loss and accuracy over the samples of all ranks, the same on each; and the seconds that it took.
  /// Nothing if a rank was asked to stop meanwhile: all leave after the same batch.
  std::optional<ValidationReport> run() const;
  const Dataset& held_out() const noexcept { return *held_out_; }

 private:
  /// Collective: whether a rank was asked to stop.
  bool is_stopped() const;

  Rank& rank_;
  torch::nn::Module& model_;
  std::shared_ptr<const Dataset> held_out_;
  std::function<Loss(const Batch&)> loss_;
};

}  // namespace troupe
