#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensor_io/base/error.hpp"

namespace troupe {

/// Allocated memory.
struct LiveBlock {
  std::int64_t bytes = 0;
  int stream =
      0;  ///< of a device, in which it was allocated: 0 is the default one, others in the order in which they were met
};

/// An allocator's state when it had no memory left, before anything was freed on the error's way up. In bytes; below 0:
/// not known.
struct MemoryShortage {
  c10::Device device = c10::kCPU;
  std::int64_t requested = -1;
  std::int64_t free = -1, total = -1;  ///< of the device, or of the host
  std::int64_t allocated = -1;         ///< by tensors of this process; on the CPU by large ones alone
  std::int64_t reserved = -1;          ///< that the process holds for them; on the CPU all of its pages
  std::int64_t limit = -1;             ///< of the process's address space
  std::vector<LiveBlock> blocks;       ///< in any order
};

/// One line: the request, the memory that there is, the largest allocations. Pure.
std::string describe(const MemoryShortage& shortage);

/// Troupe's memory on a device, by its use.
struct HeldMemory {
  std::string what;  ///< `gradient buckets`
  std::int64_t bytes = 0;
};
/// `Troupe holds: parameters 3.20 GiB, gradient buckets 1.60 GiB`, the largest first, without empty ones; empty if all
/// are. Pure.
std::string describe(std::vector<HeldMemory> held);

/// The bytes of the tensors' memory on `device`; memory of several tensors counts once. Undefined ones take none.
std::int64_t bytes_on(c10::Device device, std::span<const at::Tensor> tensors);

/// `1.25 GiB`, `640 MiB`, `12 KiB`, `17 bytes`.
std::string bytes_text(std::int64_t bytes);

/// Allocators call this right before they throw c10::OutOfMemoryError; the last one of each device is kept. Any
/// thread.
void note_shortage(MemoryShortage shortage) noexcept;
/// The last one of `device` or of the CPU, whichever was later.
std::optional<MemoryShortage> last_shortage(c10::Device device);
/// From now on LibTorch's allocator of `device` calls note_shortage, if it can. Once per process and kind of device;
/// more do nothing.
void watch_memory(c10::Device device);

/// LibTorch's allocator of `device` gives back the memory that it keeps for later, so that others find memory there.
/// Waits for the device. Of the CPU nothing.
void release_cached_memory(c10::Device device);

/// The most that tensors have held on a device, and that LibTorch's allocator has kept for them, in bytes, since the
/// process began. Of the CPU, and of an allocator that does not count: 0.
struct DeviceMemoryPeak {
  std::int64_t active = 0, reserved = 0;
};
DeviceMemoryPeak device_memory_peak(c10::Device device);

/// The operation of a report that says that memory ran out.
constexpr const char* kOutOfMemory = "out of memory";
/// The report for `error`, thrown on a rank that trains on `device`: a user's error, since another try would fail
/// too.
ErrorReport out_of_memory(const c10::OutOfMemoryError& error, c10::Device device);
/// Settings to try.
std::string memory_remedy(c10::Device device);

}  // namespace troupe
