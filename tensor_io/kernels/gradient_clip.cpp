#include "tensor_io/kernels/gradient_clip.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "tensor_io/base/processor_clones.hpp"

namespace troupe {
namespace {

// Fixed lanes, so that a processor with wider vectors adds in the same order. The square of an f32 is exact in f64.
constexpr std::int64_t kLanes = 32;

template <class T>
inline __attribute__((always_inline)) void add_squares(const T* __restrict from, std::int64_t n,
                                                       double* __restrict sums) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double x = from[i + lane];
      sums[lane] += x * x;
    }
  }
  for (std::int64_t lane = 0; i < n; ++i, ++lane) {
    const double x = from[i];
    sums[lane] += x * x;
  }
}

TROUPE_PROCESSOR_CLONES void add_squares_f32(const float* from, std::int64_t n, double* sums) {
  add_squares(from, n, sums);
}
void add_squares_f64(const double* from, std::int64_t n, double* sums) { add_squares(from, n, sums); }

}  // namespace

double sum_of_squares(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  auto values = tensor.detach();
  if (values.scalar_type() != at::kFloat && values.scalar_type() != at::kDouble) values = values.to(at::kFloat);
  if (!values.is_non_overlapping_and_dense()) values = values.contiguous();
  alignas(64) double sums[kLanes] = {};
  if (values.scalar_type() == at::kFloat) {
    add_squares_f32(values.const_data_ptr<float>(), values.numel(), sums);
  } else {
    add_squares_f64(values.const_data_ptr<double>(), values.numel(), sums);
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

double global_norm(const std::vector<at::Tensor>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) sum += sum_of_squares(tensor);
  return std::sqrt(sum);
}

double clip_factor(double norm, double max_norm) { return std::min(1.0, max_norm / (norm + 1e-6)); }

}  // namespace troupe
