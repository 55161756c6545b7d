#pragma once
#include <torch/torch.h>

#include <vector>

#include "tensor_io/communicator/communicator.hpp"
#include "tensor_io/layout/bucket_plan.hpp"
#include "tensor_io/layout/named_state.hpp"

namespace troupe {

/// Compares every rank's layout with rank 0's. Collective. Throws Error(mismatch) on all ranks, naming the first
/// parameter that differs and its rank.
void agree_on_layout(std::span<const ParameterLayout> layout, Communicator& communicator);

/// Whether it is true on any rank. Collective.
bool true_anywhere(bool mine, Communicator& communicator, const char* what);

/// The L2 norm of the tensors that the ranks hold together; each holds a part with the sum of squares `own_squares`.
/// Collective; the same bits on all.
double norm_over_ranks(double own_squares, Communicator& communicator);

/// Sends rank 0's values to all, in place, verified by hash (XXH3-64). Collective. Throws Error(mismatch) naming a rank
/// whose copy differs.
void broadcast_tensors(const NamedTensors& tensors, Communicator& communicator, const char* what);

/// Copies; the ranks' mean of floating-point tensors. Collective.
NamedTensors means_over_ranks(const NamedTensors& tensors, Communicator& communicator, const char* what);

/// A model's buffers as views of one flat tensor per dtype, so that a broadcast is one collective per dtype.
class FlatBuffers {
 public:
  explicit FlatBuffers(const torch::nn::Module& model);
  bool empty() const noexcept { return flats_.empty(); }
  /// Sends rank 0's values to all, at once.
  void broadcast(Communicator& communicator);

  /// A step as a transaction: remember the values; bring rank 0's new ones to all without showing them; then show them,
  /// or go back. After a commit, `roll_back` goes back to the committed values.
  void begin();
  void stage(Communicator& communicator);
  void commit();
  void roll_back();
  /// commit if `skip` is 0, roll_back if it is 1: () f32 on the buffers' device, not read.
  void commit_unless(const at::Tensor& skip);
  /// The values at `begin`, by name: a step under way has not touched them.
  const NamedTensors& before() const noexcept { return before_by_name_; }

 private:
  std::vector<at::Tensor> flats_, before_, staged_;
  NamedTensors before_by_name_;  // views of before_
  bool is_staged_ = false;
};

}  // namespace troupe
