#include "strategies/mesh/flat_gradients.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tensor_io/kernels/gradient_clip.hpp"

namespace troupe {

FlatGradients::FlatGradients(const std::vector<MeshParameters::Parameter>& parameters, c10::Device device)
    : views_(parameters.size()) {
  constexpr std::int64_t kLine = 16;  // floats in 64 bytes
  std::int64_t numel = 0;
  std::vector<std::pair<std::size_t, std::int64_t>> places;
  for (const bool outside : {true, false}) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& parameter = parameters[i];
      if ((parameter.block < 0) != outside || !parameter.own || !parameter.trained) continue;
      places.emplace_back(i, numel);
      numel += (parameter.tensor.numel() + kLine - 1) / kLine * kLine;
    }
    if (outside) outside_numel_ = numel;
  }
  flat_ = at::zeros({numel}, at::device(device));
  for (const auto& parameter : parameters) parameters_.push_back(parameter.tensor);
  for (const auto& [i, offset] : places)
    views_[i] = flat_.narrow(0, offset, parameters_[i].numel()).view(parameters_[i].sizes());
}

void FlatGradients::show() const { show(std::vector<bool>(parameters_.size(), true)); }

void FlatGradients::show(const std::vector<bool>& used) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].mutable_grad() = used[i] ? views_[i] : at::Tensor();
}

void FlatGradients::hide() const { show(std::vector<bool>(parameters_.size(), false)); }

std::int32_t FlatGradients::first_not_finite() const {
  const auto found = std::find_if(views_.begin(), views_.end(), [](const at::Tensor& gradient) {
    if (!gradient.defined()) return false;
    return gradient.is_cpu() ? !std::isfinite(sum_of_squares(gradient)) : !gradient.isfinite().all().item<bool>();
  });
  return found == views_.end() ? -1 : static_cast<std::int32_t>(found - views_.begin());
}

}  // namespace troupe
