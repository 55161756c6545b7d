#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace troupe {

/// The loops of PowerSGD on the CPU (power_sgd_kernels.hpp), by LibTorch's operators, for tensors of any device.
/// Nothing waits for the device. The results are the same bits on all ranks as long as their devices are of one kind.

/// Makes the columns of each of `p`, (rows, rank) f32, orthonormal in place; a column that depends on those before it
/// becomes zero. It goes by way of PᵀP in f64: the part with many steps is small, and done for all matrices at once.
/// NaN and infinity stay.
void orthonormalise_columns(const std::vector<at::Tensor>& p);

/// (rank, columns) f32 on that device: the rows that fill_zero_rows makes of rows of zeros.
at::Tensor start_rows(std::int64_t rank, std::int64_t columns, std::uint64_t seed, c10::Device device);

/// Every row of q (rank, columns) that is all zero becomes that of `start`.
void fill_zero_rows(const at::Tensor& q, const at::Tensor& start);

}  // namespace troupe
