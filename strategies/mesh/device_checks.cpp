#include "strategies/mesh/device_checks.hpp"

#include <torch/torch.h>

#include "tensor_io/device/device_kernels.hpp"

namespace troupe {

at::Tensor checks_over_ranks(const std::vector<at::Tensor>& gradients, Communicator& communicator) {
  if (communicator.device().is_cpu()) return {};
  torch::NoGradGuard no_grad;
  const auto each = check_each(gradients, communicator.device());
  auto all = at::empty({2 * communicator.world_size()}, each.options());
  communicator.all_gather(all, each.sum(0), "gradient norm");
  return all.view({-1, 2});
}

}  // namespace troupe
