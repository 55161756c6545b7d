// BatchNorm's operators on the fake device: those that LibTorch has for CUDA only, by their formulas, with what CUDA's
// ask of their arguments; and the one of a single rank, whose running statistics the fallback would change in a copy.
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "tests/support/fake_device.hpp"
#include "tests/support/fake_graph.hpp"

namespace troupe::test {
namespace {

using Maybe = std::optional<at::Tensor>;

bool is_here(const Maybe& tensor) { return tensor && tensor->defined(); }

// The host's view of an argument, which is read, or changed.
at::Tensor host_view(const at::Tensor& tensor, bool writes = false) {
  if (FakeGraph::under_way() != nullptr) FakeGraph::refuse("the stand-in for BatchNorm");
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  if (tensor.numel() > 0)
    FakeDevice::note_access(tensor.data_ptr(), static_cast<std::size_t>(last + 1) * tensor.element_size(), writes);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.dtype()));
}

at::Tensor host_view(const Maybe& tensor, bool writes = false) {
  return is_here(tensor) ? host_view(*tensor, writes) : at::Tensor();
}

at::Tensor on_device(const at::Tensor& tensor) { return tensor.defined() ? tensor.to(FakeDevice::device()) : tensor; }

at::ScalarType precision_of(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

std::vector<std::int64_t> all_but_channels(const at::Tensor& tensor) {
  std::vector<std::int64_t> dims;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (d != 1) dims.push_back(d);
  }
  return dims;
}

// (C,) f64, to be used with `like` (N, C, ...).
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return host_view(values).to(at::kDouble).view(shape);
}

std::tuple<at::Tensor, at::Tensor> batch_norm_stats(const at::Tensor& input, double eps) {
  const auto dtype = precision_of(input.scalar_type());
  const auto [variance, mean] =
      at::var_mean(host_view(input).to(at::kDouble), all_but_channels(input), /*unbiased=*/false);
  return {on_device(mean.to(dtype)), on_device((variance + eps).rsqrt().to(dtype))};
}

// Rank after rank, in the dtype of the statistics, as the kernel.
template <class T>
void merge(const at::Tensor& means, const at::Tensor& inverses, const at::Tensor& counts, double eps,
           std::int64_t channel, T* mean, T* square, T* total) {
  for (std::int64_t r = 0; r < counts.numel(); ++r) {
    const auto count = counts[r].template item<T>(), m = means[r][channel].template item<T>();
    auto v = T(1) / inverses[r][channel].template item<T>();
    v = (v * v - static_cast<T>(eps)) * count;
    const T factor = T(1) / (*total + count);
    *square += v + (*mean - m) * (*mean - m) * *total * count * factor;
    *mean = *total * factor * *mean + count * factor * m;
    *total += count;
  }
}

std::tuple<at::Tensor, at::Tensor> batch_norm_gather_stats_with_counts(const at::Tensor& input, const at::Tensor& means,
                                                                       const at::Tensor& inverses,
                                                                       const Maybe& running_mean,
                                                                       const Maybe& running_var, double momentum,
                                                                       double eps, const at::Tensor& counts) {
  const auto dtype = is_here(running_mean) ? running_mean->scalar_type() : input.scalar_type();
  TORCH_CHECK(counts.scalar_type() == dtype && means.scalar_type() == precision_of(dtype) &&
                  inverses.scalar_type() == precision_of(dtype),
              "CUDA's reads counts and statistics as they are, and these have other dtypes");
  TORCH_CHECK(means.dim() == 2 && inverses.dim() == 2 && counts.dim() == 1);
  const auto host_means = host_view(means), host_inverses = host_view(inverses), host_counts = host_view(counts);
  auto mean = at::zeros({means.size(1)}, host_means.options()),
       inverse = at::zeros({means.size(1)}, host_means.options());
  for (std::int64_t c = 0; c < means.size(1); ++c) {
    const auto channel = [&]<class T>(T) {
      T average = 0, square = 0, total = 0;
      merge<T>(host_means, host_inverses, host_counts, eps, c, &average, &square, &total);
      mean[c] = average;
      inverse[c] = T(1) / std::sqrt(square / total + static_cast<T>(eps));
      if (!is_here(running_mean)) return;
      auto live_mean = host_view(*running_mean, true), live_var = host_view(*running_var, true);
      live_mean[c] =
          live_mean[c].template item<T>() * static_cast<T>(1 - momentum) + average * static_cast<T>(momentum);
      live_var[c] = live_var[c].template item<T>() * static_cast<T>(1 - momentum) +
                    square / (total - 1) * static_cast<T>(momentum);
    };
    dtype == at::kDouble ? channel(double{}) : channel(float{});
  }
  return {on_device(mean), on_device(inverse)};
}

at::Tensor batch_norm_elemt(const at::Tensor& input, const Maybe& weight, const Maybe& bias, const at::Tensor& mean,
                            const at::Tensor& inverse, double) {
  auto x = (host_view(input).to(at::kDouble) - per_channel(mean, input)) * per_channel(inverse, input);
  if (is_here(weight)) x = x * per_channel(*weight, input);
  if (is_here(bias)) x = x + per_channel(*bias, input);
  return on_device(x.to(input.scalar_type()).contiguous(input.suggest_memory_format()));
}

void check_backward(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& mean, const Maybe& weight) {
  TORCH_CHECK(!is_here(weight) || weight->scalar_type() == mean.scalar_type(),
              "CUDA's reads the weight as it is, and it has another dtype");
  TORCH_CHECK(dy.strides() == input.strides(), "CUDA's takes both in one layout");
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor& dy, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inverse,
    const Maybe& weight, bool, bool weight_g, bool bias_g) {
  check_backward(dy, input, mean, weight);
  const auto dims = all_but_channels(input);
  const auto gradient = host_view(dy).to(at::kDouble);
  const auto sum = gradient.sum(dims);
  const auto sum_xmu = (gradient * (host_view(input).to(at::kDouble) - per_channel(mean, input))).sum(dims);
  const auto result = [&](const at::Tensor& values) { return on_device(values.to(mean.scalar_type())); };
  return {result(sum), result(sum_xmu), weight_g ? result(sum_xmu * host_view(inverse).to(at::kDouble)) : at::Tensor(),
          bias_g ? result(sum) : at::Tensor()};
}

at::Tensor batch_norm_backward_elemt(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& mean,
                                     const at::Tensor& inverse, const Maybe& weight, const at::Tensor& sum_dy,
                                     const at::Tensor& sum_dy_xmu, const at::Tensor& counts) {
  check_backward(dy, input, mean, weight);
  TORCH_CHECK(counts.scalar_type() == at::kInt && counts.is_contiguous(),
              "CUDA's takes counts for a plain array of int");
  const auto total = host_view(counts).sum().item<double>();
  const auto scale = per_channel(inverse, input);
  auto gradient = host_view(dy).to(at::kDouble) - per_channel(sum_dy, input) / total -
                  (host_view(input).to(at::kDouble) - per_channel(mean, input)) * scale.square() *
                      per_channel(sum_dy_xmu, input) / total;
  gradient = gradient * scale;
  if (is_here(weight)) gradient = gradient * per_channel(*weight, input);
  return on_device(gradient.to(input.scalar_type()).contiguous(input.suggest_memory_format()));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(const at::Tensor& input, const Maybe& weight,
                                                                 const Maybe& bias, const Maybe& running_mean,
                                                                 const Maybe& running_var, bool training,
                                                                 double momentum, double eps) {
  const auto [output, mean, inverse] =
      at::native_batch_norm(host_view(input), host_view(weight), host_view(bias), host_view(running_mean, training),
                            host_view(running_var, training), training, momentum, eps);
  return {on_device(output), on_device(mean), on_device(inverse)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("batch_norm_stats", &batch_norm_stats);
  m.impl("batch_norm_gather_stats_with_counts", &batch_norm_gather_stats_with_counts);
  m.impl("batch_norm_elemt", &batch_norm_elemt);
  m.impl("batch_norm_backward_reduce", &batch_norm_backward_reduce);
  m.impl("batch_norm_backward_elemt", &batch_norm_backward_elemt);
  m.impl("native_batch_norm", &native_batch_norm);
}

}  // namespace troupe::test
