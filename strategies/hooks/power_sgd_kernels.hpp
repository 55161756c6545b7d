#pragma once
#include <cstdint>

namespace troupe {

/// Plain loops of PowerSGD whose results must be the same bits on every rank, on any processor. So they have no library
/// call that picks an order by itself, and no fused multiply-add (this file is compiled with -ffp-contract=off). All
/// matrices are row-major f32.

/// Makes the columns of p (rows, rank) orthonormal in place, by modified Gram-Schmidt in f64. A column that depends on
/// those before it becomes zero.
void orthonormalise_columns(float* p, std::int64_t rows, std::int64_t rank);

/// With a = p (rows, rank) times q (rank, columns): error = m - a, m = a. One pass over memory.
void decompress(float* m, float* error, const float* p, const float* q, std::int64_t rows, std::int64_t columns,
                std::int64_t rank);

/// Fills every row of q (rank, columns) that is all zero with numbers in (-1, 1) that depend on `seed` and the row
/// only.
void fill_zero_rows(float* q, std::int64_t rank, std::int64_t columns, std::uint64_t seed);

}  // namespace troupe
