#include "strategies/hooks/power_sgd_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor_io/base/mix_seed.hpp"
#include "tensor_io/base/processor_clones.hpp"

namespace troupe {
namespace {

// Fits the first-level cache beside the rows that it is made of.
constexpr std::int64_t kBlock = 1024;

TROUPE_PROCESSOR_CLONES void scale_row(float* __restrict to, const float* __restrict row, float factor,
                                       std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) to[j] = factor * row[j];
}

TROUPE_PROCESSOR_CLONES void add_scaled_row(float* __restrict to, const float* __restrict row, float factor,
                                            std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) to[j] += factor * row[j];
}

TROUPE_PROCESSOR_CLONES void exchange(float* __restrict m, float* __restrict error,
                                      const float* __restrict approximation, std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) {
    error[j] = m[j] - approximation[j];
    m[j] = approximation[j];
  }
}

}  // namespace

void orthonormalise_columns(float* p, std::int64_t rows, std::int64_t rank) {
  std::vector<double> columns(static_cast<std::size_t>(rows * rank));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < rank; ++k) columns[k * rows + i] = p[i * rank + k];
  }
  const auto dot = [rows](const double* a, const double* b) {
    double sum = 0;
    for (std::int64_t i = 0; i < rows; ++i) sum += a[i] * b[i];
    return sum;
  };
  for (std::int64_t k = 0; k < rank; ++k) {
    double* column = &columns[k * rows];
    const double before = dot(column, column);
    for (std::int64_t other = 0; other < k; ++other) {
      const double* basis = &columns[other * rows];
      const double along = dot(column, basis);
      for (std::int64_t i = 0; i < rows; ++i) column[i] -= along * basis[i];
    }
    const double after = dot(column, column);
    // f32 input: what is left below 1e-12 of the square is rounding, not a direction.
    const double scale = after > 1e-12 * before && after > 0 ? 1 / std::sqrt(after) : 0;
    for (std::int64_t i = 0; i < rows; ++i) column[i] *= scale;
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < rank; ++k) p[i * rank + k] = static_cast<float>(columns[k * rows + i]);
  }
}

void decompress(float* m, float* error, const float* p, const float* q, std::int64_t rows, std::int64_t columns,
                std::int64_t rank) {
  alignas(64) float approximation[kBlock];
  for (std::int64_t begin = 0; begin < columns; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, columns - begin);
    for (std::int64_t i = 0; i < rows; ++i) {
      scale_row(approximation, q + begin, p[i * rank], n);
      for (std::int64_t k = 1; k < rank; ++k)
        add_scaled_row(approximation, q + k * columns + begin, p[i * rank + k], n);
      exchange(m + i * columns + begin, error + i * columns + begin, approximation, n);
    }
  }
}

void fill_zero_rows(float* q, std::int64_t rank, std::int64_t columns, std::uint64_t seed) {
  for (std::int64_t k = 0; k < rank; ++k) {
    float* row = q + k * columns;
    if (std::any_of(row, row + columns, [](float x) { return x != 0; })) continue;
    for (std::int64_t j = 0; j < columns; ++j) {
      const auto bits =
          mix_seed(seed ^ mix_seed(static_cast<std::uint64_t>(k * columns + j), {}), {}) >> 40;  // 24 of them
      row[j] = static_cast<float>(bits) * 0x1p-23f - 1.0f + 0x1p-24f;
    }
  }
}

}  // namespace troupe
