#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace troupe {

/// The sum of all squares, in f64, one pass over memory. The same bits on any processor, if the tensor holds the same
/// bits in the same strides: 32 partial sums, added up in a fixed order. Infinite or NaN if a value is. f32, f64, f16,
/// bf16.
double sum_of_squares(const at::Tensor& tensor);

/// The L2 norm of all tensors together, added up in the order of the list: the result of
/// torch.nn.utils.clip_grad_norm_, in f64.
double global_norm(const std::vector<at::Tensor>& tensors);

/// The factor for gradients of this norm that makes it at most `max_norm`: clip_grad_norm_'s max_norm / (norm + 1e-6),
/// at most 1.
double clip_factor(double norm, double max_norm);

}  // namespace troupe
