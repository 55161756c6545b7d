#include "strategies/mesh/device_checks.hpp"

#include <torch/torch.h>

#include "tensor_io/device/device_kernels.hpp"

namespace troupe {

at::Tensor checks_over_ranks(const std::vector<at::Tensor>& gradients, Communicator& communicator) {
  if (communicator.device().is_cpu()) return {};
  torch::NoGradGuard no_grad;
  const auto count = static_cast<std::int64_t>(gradients.size());
  const auto each = at::zeros({count, 2}, at::device(communicator.device()).dtype(at::kDouble));
  for (std::int64_t i = 0; i < count; ++i)
    scale_and_check(gradients[static_cast<std::size_t>(i)].view(-1), 1, each.select(0, i));
  auto all = at::empty({2 * communicator.world_size()}, each.options());
  communicator.all_gather(all, each.sum(0), "gradient norm");
  return all.view({-1, 2});
}

}  // namespace troupe
