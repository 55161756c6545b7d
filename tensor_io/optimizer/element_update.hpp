#pragma once
#include "tensor_io/optimizer/optimizer.hpp"
#include "tensor_io/optimizer/reduced_update.hpp"

namespace troupe {

/// The parameter's gradient in the form of apply_update: (numel,) f32, in the parameter's order of memory, zeros behind
/// it up to 64 bytes. Undefined if it has none. Throws Error(usage) for a sparse one, or another dtype or device.
at::Tensor gradient_lines(const ElementState& element);

/// Writes the result of the element's next step on `state`, at this rate and with this gradient_lines, into `next`:
/// equally long, at 64 bytes. The caller updates `step`.
void update_element(const ElementState& element, const at::Tensor& gradient, double lr, const UpdatedState& state,
                    const UpdatedState& next);

/// A step of the optimizer's elements by the kernel of early updates, instead of Optimizer::step. The bits are those of
/// an early update of the same gradients, so it serves for steps in which no update was begun. Throws Error(usage) for
/// an optimizer that has no elements. `field` is the name in the error.
void update_elements(Optimizer& optimizer, double lr, const char* field);

}  // namespace troupe
