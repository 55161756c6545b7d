#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tensor_io/kernels/update_kernels.hpp"

namespace troupe {

/// The state that an optimizer changes: (numel,) f32 on the CPU each; element i of one belongs to element i of the
/// others. Undefined moments: it has none.
struct UpdatedState {
  at::Tensor parameter, first, second;
  /// The result of `change` for each that is defined.
  template <class Change>
  UpdatedState map(Change change) const {
    const auto of = [&](const at::Tensor& tensor) { return tensor.defined() ? change(tensor) : at::Tensor(); };
    return {of(parameter), of(first), of(second)};
  }
};

/// An update that goes with a reduction (Communicator::all_reduce_update).
struct ReducedUpdate {
  /// Elements with the same rule. Cut at 64 bytes.
  struct Run {
    std::int64_t begin = 0, end = 0;
    UpdateRule rule;
  };
  UpdatedState state;      ///< read; all at 64 bytes, of as many elements as the gradients
  UpdatedState next;       ///< written in the runs; from the communicator's allocate(), at the same place of it on all
                           ///< ranks, or from allocate_shared()
  std::vector<Run> runs;   ///< in order, disjoint
  bool streaming = false;  ///< next is more than the caches hold
};

/// Elements [begin, end) of the update, with gradients (gradients[0] + ...) / divisor; `next` is written at each of the
/// copies, whose pointers are to element 0. As many of `second` as of `first`, or none.
struct UpdateCopies {
  std::vector<float*> parameter, first, second;
};
/// One copy: `next` itself.
UpdateCopies copies_here(const UpdatedState& next);
void apply_update(const ReducedUpdate& update, const std::vector<const float*>& gradients, int divisor,
                  const UpdateCopies& copies, std::int64_t begin, std::int64_t end);

}  // namespace troupe
