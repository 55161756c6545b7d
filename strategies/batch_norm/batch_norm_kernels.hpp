#pragma once
#include <ATen/core/Tensor.h>

namespace troupe {

/// to -= constant + (x - mean) * slope, per channel, in one pass over memory for f32 that is contiguous or
/// channels-last. `to` and `x` are (N, C, ...), of the same dtype and strides; mean, constant and slope (C,), of any
/// floating dtype.
void subtract_per_channel(const at::Tensor& to, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& constant,
                          const at::Tensor& slope);

}  // namespace troupe
