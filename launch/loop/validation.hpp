#pragma once
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "actors/metrics/validation_report.hpp"
#include "launch/loop/rank.hpp"

namespace troupe {

class Compute;

/// A run's best validation so far: that of the highest accuracy; among equals, and if the program counts no correct
/// samples, of the lowest loss. Compute::notes, which newcomers get with the model, have two of them: the best one
/// measured, and the best one whose checkpoint is on disk, which later ones have to beat.
struct BestValidation {
  double accuracy = -1;  ///< 0 to 1; -1: there is none yet
  double loss = std::numeric_limits<double>::infinity();
  std::int64_t step = -1;                         ///< of its measurement; -1: an older checkpoint lacks it
  static BestValidation of(Compute& compute);     ///< measured: its save may be under way, or have failed
  static BestValidation saved(Compute& compute);  ///< on disk, as far as this rank knows
  /// From the texts of a checkpoint or of Compute::notes.
  static BestValidation read(const std::map<std::string, std::string>& texts);
  void write(std::map<std::string, std::string>& texts) const;
  void keep(Compute& compute) const;
  void keep_saved(Compute& compute) const;
  bool is_beaten_by(const ValidationReport& report) const;
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
  /// Nothing if a rank was asked to stop meanwhile: all leave after the same batch, and the run is asked to stop.
  std::optional<ValidationReport> run() const;
  const Dataset& held_out() const noexcept { return *held_out_; }

 private:
  /// Collective: whether a rank was asked to stop. Then Rank::stop_signal says so.
  bool is_stopped() const;

  Rank& rank_;
  torch::nn::Module& model_;
  std::shared_ptr<const Dataset> held_out_;
  std::function<Loss(const Batch&)> loss_;
};

}  // namespace troupe
