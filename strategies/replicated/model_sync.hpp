#pragma once
#include <torch/torch.h>

#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layout/bucket_plan.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// Every rank's layout against rank 0's. Collective. Throws Error(mismatch) on all ranks, naming the first parameter
/// that differs and on which rank.
void agree_on_layout(std::span<const ParameterLayout> layout, Communicator& communicator);

/// The L2 norm of what the ranks hold together, each of which holds `own_squares` (a sum of squares) of it. Collective;
/// the same bits on all.
double norm_over_ranks(double own_squares, Communicator& communicator);

/// Rank 0's values to all, in place, verified by hash (XXH3-64). Collective. Throws Error(mismatch) naming a rank whose
/// copy differs.
void broadcast_tensors(const NamedTensors& tensors, Communicator& communicator, const char* what);

/// Copies; of what is floating point, the ranks' mean. Collective.
NamedTensors means_over_ranks(const NamedTensors& tensors, Communicator& communicator, const char* what);

/// A model's buffers as views of one flat tensor per dtype, so that a broadcast is one collective per dtype.
class FlatBuffers {
 public:
  explicit FlatBuffers(const torch::nn::Module& model);
  bool empty() const noexcept { return flats_.empty(); }
  /// Rank 0's values to all, at once.
  void broadcast(Communicator& communicator);

  /// A step as a transaction: remember the values; bring rank 0's new ones to all without showing them; then show them,
  /// or go back. A commit, too, is what `roll_back` goes back to from then on.
  void begin();
  void stage(Communicator& communicator);
  void commit();
  void roll_back();
  /// commit where `skip` is 0, roll_back where it is 1: () f32 on the buffers' device, not read.
  void commit_unless(const at::Tensor& skip);
  /// The values at `begin`, by name: what a step that is under way has not touched.
  const NamedTensors& before() const noexcept { return before_by_name_; }

 private:
  std::vector<at::Tensor> flats_, before_, staged_;
  NamedTensors before_by_name_;  // views of before_
  bool is_staged_ = false;
};

}  // namespace troupe
