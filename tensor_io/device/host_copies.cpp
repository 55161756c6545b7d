#include "tensor_io/device/host_copies.hpp"

#include <ATen/ops/empty.h>

#include <chrono>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

constexpr std::chrono::seconds kPatience{60};

}  // namespace

at::Tensor HostCopies::memory(std::int64_t bytes, c10::Device from) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(from.is_cuda()));
}

void HostCopies::add(const at::Tensor& to, const at::Tensor& from) {
  to.copy_(from, /*non_blocking=*/true);
  if (!from.is_cpu()) device_ = from.device();
}

void HostCopies::wait() {
  if (!device_) return;
  DeviceEvent over(*device_);
  over.record(DeviceStream::current(*device_));
  device_.reset();
  const auto began = std::chrono::steady_clock::now();
  host_wait(over, [&] {
    if (std::chrono::steady_clock::now() - began < kPatience) return;
    throw Error(ErrorCode::timeout, "copies to the host", "they did not finish within 60 s",
                "the device may have failed: look for Xid errors in dmesg");
  });
}

}  // namespace troupe
