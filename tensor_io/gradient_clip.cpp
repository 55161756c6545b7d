#include "tensor_io/gradient_clip.hpp"

#include <torch/torch.h>

#include <cmath>

namespace troupe {

double global_norm(const std::vector<at::Tensor>& tensors) {
  torch::NoGradGuard no_grad;
  double sum = 0;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const double norm = at::linalg_vector_norm(tensor, 2, c10::nullopt, false, at::kDouble).item<double>();
    sum += norm * norm;
  }
  return std::sqrt(sum);
}

}  // namespace troupe
