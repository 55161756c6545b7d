#pragma once
#include "tensor_io/optimizer/optimizer.hpp"
#include "tensor_io/optimizer/reduced_update.hpp"

namespace troupe {

/// The parameter's gradient as apply_update takes it: (numel,) f32, as the parameter lies in memory, zeros behind it up
/// to 64 bytes. Undefined where it has none. Throws Error(usage) for one that is sparse, or of another dtype or device.
at::Tensor gradient_lines(const ElementState& element);

/// What the element's next step at this rate makes of `state`, with this gradient_lines, into `next`: as long each, at
/// 64 bytes. `step` is left to the caller.
void update_element(const ElementState& element, const at::Tensor& gradient, double lr, const UpdatedState& state,
                    const UpdatedState& next);

/// A step of the optimizer's elements by the kernel that early updates are made by, in the place of Optimizer::step:
/// the bits are those of an early update of the same gradients, so that it may be taken where no update was begun.
/// Throws Error(usage) for an optimizer that has no elements. `field` is what the error names.
void update_elements(Optimizer& optimizer, double lr, const char* field);

}  // namespace troupe
