#include "tensor_io/data/device_feed.hpp"

#include <ATen/core/grad_mode.h>

namespace troupe {

DeviceFeed::DeviceFeed(c10::Device device) : device_(device), copies_(DeviceStream::from_pool(device, false)) {}

Batch DeviceFeed::send(Batch batch) const {
  const at::NoGradGuard no_grad;
  const CurrentStream place(copies_);
  const auto sent = [this](const at::Tensor& tensor) {
    if (tensor.device() == device_) return tensor;
    // LibTorch keeps pinned memory until the copy out of it is over.
    return (device_.is_cuda() ? tensor.pin_memory() : tensor).to(device_, /*non_blocking=*/true);
  };
  auto fields = batch.fields();
  for (auto& [name, tensor] : fields) tensor = sent(tensor);
  batch.set_fields(fields);
  const auto arrived = std::make_shared<DeviceEvent>(device_);
  arrived->record(copies_);
  batch.arrived = arrived;
  return batch;
}

void DeviceFeed::receive(const Batch& batch) {
  if (!batch.arrived) return;
  for (const auto& [name, tensor] : batch.fields()) {
    if (!tensor.is_cpu()) DeviceStream::current(tensor.device()).use(tensor, *batch.arrived);
  }
}

}  // namespace troupe
