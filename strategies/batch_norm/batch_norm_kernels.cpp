#include "strategies/batch_norm/batch_norm_kernels.hpp"

#include <ATen/core/grad_mode.h>

#include <vector>

#include "tensor_io/base/processor_clones.hpp"

namespace troupe {
namespace {

TROUPE_PROCESSOR_CLONES void one_channel(float* __restrict to, const float* __restrict x, float mean, float constant,
                                         float slope, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] -= constant + (x[i] - mean) * slope;
}

TROUPE_PROCESSOR_CLONES void all_channels(float* __restrict to, const float* __restrict x, const float* __restrict mean,
                                          const float* __restrict constant, const float* __restrict slope,
                                          std::int64_t channels) {
  for (std::int64_t c = 0; c < channels; ++c) to[c] -= constant[c] + (x[c] - mean[c]) * slope[c];
}

}  // namespace

void subtract_per_channel(const at::Tensor& to, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& constant,
                          const at::Tensor& slope) {
  at::NoGradGuard no_grad;
  const auto channels = x.size(1);
  if (x.numel() == 0) return;
  const auto positions = x.numel() / x.size(0) / channels;
  const bool channels_first = positions > 1 && to.is_contiguous() && x.is_contiguous();
  const auto innermost_channels = [](const at::Tensor& t) {
    return t.dim() == 2   ? t.is_contiguous()
           : t.dim() == 4 ? t.is_contiguous(at::MemoryFormat::ChannelsLast)
                          : t.dim() == 5 && t.is_contiguous(at::MemoryFormat::ChannelsLast3d);
  };
  if (x.scalar_type() == at::kFloat && to.scalar_type() == at::kFloat &&
      (channels_first || (innermost_channels(to) && innermost_channels(x)))) {
    const auto values = [](const at::Tensor& t) { return t.to(at::kFloat).contiguous(); };
    const auto m = values(mean), k = values(constant), s = values(slope);
    const auto *pm = m.const_data_ptr<float>(), *pk = k.const_data_ptr<float>(), *ps = s.const_data_ptr<float>(),
               *px = x.const_data_ptr<float>();
    auto* pt = to.data_ptr<float>();
    const auto rows = x.numel() / channels;
    if (channels_first) {
      for (std::int64_t i = 0; i < rows / positions * channels; ++i) {
        const auto c = i % channels;
        one_channel(pt + i * positions, px + i * positions, pm[c], pk[c], ps[c], positions);
      }
    } else {
      for (std::int64_t i = 0; i < rows; ++i) all_channels(pt + i * channels, px + i * channels, pm, pk, ps, channels);
    }
    return;
  }
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = channels;
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto per_channel = [&](const at::Tensor& t) { return t.to(wide).view(shape); };
  to.copy_(to.to(wide).sub(per_channel(constant).add(x.to(wide).sub(per_channel(mean)).mul(per_channel(slope)))));
}

}  // namespace troupe
