#include "tensor_io/snapshot.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdlib>
#include <cstring>

#include "tensor_io/error.hpp"
#include "tensor_io/file_layer.hpp"
#include "tensor_io/safetensors.hpp"

namespace troupe {
namespace {

at::Tensor allocate(std::int64_t bytes) {
  constexpr auto kPage = static_cast<std::int64_t>(DurableFile::kPage);
  const auto rounded = (bytes + kPage - 1) / kPage * kPage;
  void* memory = std::aligned_alloc(DurableFile::kPage, static_cast<std::size_t>(rounded));
  if (memory == nullptr)
    throw Error(ErrorCode::unavailable, "snapshot", "there is no memory for " + std::to_string(rounded) + " bytes",
                "a checkpoint needs the state's size once more; save less of it, or give the rank more memory");
  std::memset(memory, 0, static_cast<std::size_t>(rounded));
  return at::from_blob(
      memory, {rounded}, [](void* freed) { std::free(freed); }, at::kByte);
}

}  // namespace

NamedTensors Snapshot::take(const NamedTensors& live) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : live) bytes += static_cast<std::int64_t>(tensor.nbytes());
  if (!block_.defined() || block_.numel() < bytes) block_ = bytes > 0 ? allocate(bytes) : at::Tensor();
  NamedTensors copies(live.size());
  std::int64_t begin = 0;
  // Widest elements first, so each tensor is aligned to its own.
  for (const auto index : safetensors_order(live)) {
    const auto& [name, tensor] = live[index];
    const auto end = begin + static_cast<std::int64_t>(tensor.nbytes());
    auto copy = tensor.numel() == 0 ? at::empty(tensor.sizes(), tensor.options().device(at::kCPU))
                                    : block_.slice(0, begin, end).view(tensor.scalar_type()).view(tensor.sizes());
    copy.copy_(tensor.detach());
    copies[index] = {name, std::move(copy)};
    begin = end;
  }
  return copies;
}

}  // namespace troupe
