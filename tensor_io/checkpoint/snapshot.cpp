#include "tensor_io/checkpoint/snapshot.hpp"

#include <sys/mman.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <new>
#include <optional>
#include <span>

#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/hashed_copy.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/device/host_copies.hpp"

namespace troupe {
namespace {

// In huge pages where the system has them: fewer faults now, fewer pages to pin for each write to disk.
at::Tensor allocate(std::int64_t bytes) {
  constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
  const auto unit = bytes >= kHugePage ? kHugePage : static_cast<std::int64_t>(DurableFile::kPage);
  const auto rounded = (bytes + unit - 1) / unit * unit;
  const std::align_val_t alignment{static_cast<std::size_t>(unit)};
  void* memory = ::operator new(static_cast<std::size_t>(rounded), alignment, std::nothrow);
  if (memory == nullptr)
    throw Error(ErrorCode::unavailable, "snapshot", "there is no memory for " + std::to_string(rounded) + " bytes",
                "lower staging_limit_mb, or give the rank more memory: a checkpoint needs a second copy of this rank's "
                "part of the state");
  ::madvise(memory, static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
  return at::from_blob(
      memory, {rounded}, [alignment](void* freed) { ::operator delete(freed, alignment); }, at::kByte);
}

// Past the cache, which copy_ does not: it takes a fifth longer.
void copy_values(const at::Tensor& to, const at::Tensor& from, HashedCopy* hashed, HostCopies& copies) {
  if (from.is_cpu() && from.is_contiguous() && !from.is_neg()) {
    const std::span bytes(static_cast<const std::byte*>(from.const_data_ptr()), from.nbytes());
    if (hashed != nullptr) {
      hashed->add(to.mutable_data_ptr(), bytes);
    } else {
      std::memcpy(to.mutable_data_ptr(), bytes.data(), bytes.size());
    }
  } else {
    copies.add(to, from);
    if (hashed != nullptr) hashed->skip(to.nbytes());
  }
}

c10::Device device_of(const std::vector<TensorPart>& parts) {
  for (const auto& part : parts) {
    for (const auto& piece : part.pieces) {
      if (!piece.is_cpu()) return piece.device();
    }
  }
  return at::kCPU;
}

}  // namespace

std::size_t Snapshot::take(CheckpointPart& to_save) {
  auto& parts = to_save.tensors;
  sort_for_file(parts);
  std::uint64_t total = 0;
  for (const auto& part : parts) total += part.bytes();
  std::size_t live = parts.size();
  std::int64_t bytes = 0;
  while (live > 0 && static_cast<std::int64_t>(parts[live - 1].bytes()) <= limit_ - bytes)
    bytes += static_cast<std::int64_t>(parts[--live].bytes());
  if (!block_.defined() || block_.numel() < bytes) {
    block_ = at::Tensor();
    if (bytes > 0) block_ = device_of(parts).is_cpu() ? allocate(bytes) : HostCopies::memory(bytes, device_of(parts));
  }
  std::optional<HashedCopy> hashed;
  if (tensors_begin_at(total) == FileDigest::kChunkBytes) hashed.emplace(total - static_cast<std::uint64_t>(bytes));
  HostCopies copies;
  std::int64_t begin = 0;
  // Widest elements first, so each tensor is aligned to its own.
  for (auto part = parts.begin() + static_cast<std::ptrdiff_t>(live); part != parts.end(); ++part) {
    const auto end = begin + static_cast<std::int64_t>(part->bytes());
    at::Tensor copy;
    if (begin == end) {
      copy = at::empty(part->shape, at::TensorOptions().dtype(part->dtype));
    } else {
      copy = block_.slice(0, begin, end).view(part->dtype);
      std::int64_t at = 0;
      for (const auto& piece : part->pieces) {
        copy_values(copy.narrow(0, at, piece.numel()).view(piece.sizes()), piece.detach(), hashed ? &*hashed : nullptr,
                    copies);
        at += piece.numel();
      }
    }
    part->pieces.assign(1, copy.view(part->shape));
    begin = end;
  }
  copies.wait();
  to_save.hashes = hashed ? hashed->take() : ChunkHashes();
  return live;
}

}  // namespace troupe
