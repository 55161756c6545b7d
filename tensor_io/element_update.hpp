#pragma once
#include "tensor_io/optimizer.hpp"

namespace troupe {

/// A step of the optimizer's elements by the kernel that early updates are made by, in the place of Optimizer::step: the bits are those of
/// an early update of the same gradients, so that it may be taken where no update was begun. Throws Error(usage) for an optimizer that has
/// no elements. `field` is what the error names.
void update_elements(Optimizer& optimizer, double lr, const char* field);

}  // namespace troupe
