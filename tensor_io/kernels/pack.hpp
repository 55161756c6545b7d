#pragma once
#include <ATen/core/Tensor.h>

namespace troupe {

/// Copies `source` into `destination` (same sizes and dtype) and returns whether every value is finite. It takes one
/// pass over memory if both have the same dense layout and are f32, f64, f16 or bf16; otherwise two. The memory must
/// not overlap.
bool copy_and_check(const at::Tensor& destination, const at::Tensor& source);
/// As copy_and_check, but adds; one pass for f32.
bool add_and_check(const at::Tensor& destination, const at::Tensor& source);
bool all_finite(const at::Tensor& tensor);

}  // namespace troupe
