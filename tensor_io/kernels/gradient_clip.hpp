#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace troupe {

/// The sum of all squares, in f64, one pass over memory. The same bits wherever the tensor holds the same bits in the
/// same strides, whatever the processor: 32 partial sums, added up in a fixed order. Infinite or NaN where a value is.
/// f32, f64, f16, bf16.
double sum_of_squares(const at::Tensor& tensor);

/// The L2 norm of all tensors together, added up in the order of the list: what torch.nn.utils.clip_grad_norm_ returns,
/// in f64.
double global_norm(const std::vector<at::Tensor>& tensors);

/// What gradients of this norm are multiplied by so that it is at most `max_norm`: clip_grad_norm_'s max_norm / (norm +
/// 1e-6), at most 1.
double clip_factor(double norm, double max_norm);

}  // namespace troupe
