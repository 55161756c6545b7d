#include "actors/compute/device_numbers.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <utility>

namespace troupe {

void DeviceNumbers::send(c10::Device device, const at::Tensor& totals, const at::Tensor& skip) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (auto& loss : losses) {
    parts.push_back(std::exchange(loss.value, at::Tensor()).to(at::kDouble).view(1));
    loss.has_correct = loss.correct.defined();
    if (loss.has_correct) parts.push_back(std::exchange(loss.correct, at::Tensor()).to(at::kDouble).view(1));
  }
  has_totals = totals.defined();
  if (totals.defined()) parts.push_back(totals);
  if (skip.defined()) parts.push_back(skip.to(at::kDouble).view(1));
  values = at::Tensor();
  if (parts.empty()) return;
  const auto on_device = at::cat(parts);
  values = at::empty(on_device.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(on_device.is_cuda()));
  values.copy_(on_device, /*non_blocking=*/true);
  over.emplace(device);
  over->record(DeviceStream::current(device));
}

double DeviceNumbers::take(StepLosses& count) {
  if (!values.defined()) return 0;
  const auto* value = values.const_data_ptr<double>();
  for (const auto& loss : std::exchange(losses, {})) {
    count.count_value(*value++, loss.samples, loss.counts);
    if (loss.has_correct) correct += *value++;
  }
  double squares = 0;
  if (has_totals) {
    squares = *value++;
    not_finite = *value++ > 0;
  }
  const auto* end = values.const_data_ptr<double>() + values.numel();
  skipped = value != end && *value != 0;
  return std::sqrt(squares);
}

}  // namespace troupe
