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

/// Memory that somebody holds.
struct LiveBlock {
  std::int64_t bytes = 0;
  int stream =
      0;  ///< of a device, that it was allocated in: 0 is the default one, others in the order in which they were met
};

/// How an allocator stood when it had no memory left, before anything was freed on the error's way up. In bytes; below
/// 0: not known.
struct MemoryShortage {
  c10::Device device = c10::kCPU;
  std::int64_t requested = -1;
  std::int64_t free = -1, total = -1;  ///< of the device, or of the host
  std::int64_t allocated = -1;         ///< by tensors of this process; on the CPU by large ones alone
  std::int64_t reserved = -1;          ///< that the process holds for them; on the CPU all of its pages
  std::int64_t limit = -1;             ///< of the process's address space
  std::vector<LiveBlock> blocks;       ///< in any order
};

/// One line: what was asked for, what there is, the largest allocations. Pure.
std::string describe(const MemoryShortage& shortage);

/// What Troupe holds on a device, by what it is.
struct HeldMemory {
  std::string what;  ///< `gradient buckets`
  std::int64_t bytes = 0;
};
/// `Troupe holds: parameters 3.20 GiB, gradient buckets 1.60 GiB`, the largest first, without what is empty; empty
/// where all is. Pure.
std::string describe(std::vector<HeldMemory> held);

/// Of the memory on `device` that the tensors lie in; what several lie in counts once. Undefined ones take none.
std::int64_t bytes_on(c10::Device device, std::span<const at::Tensor> tensors);

/// `1.25 GiB`, `640 MiB`, `12 KiB`, `17 bytes`.
std::string bytes_text(std::int64_t bytes);

/// Allocators tell here, right before they throw c10::OutOfMemoryError; the last one of each device is kept. Any
/// thread.
void note_shortage(MemoryShortage shortage) noexcept;
/// The last one of `device` or of the CPU, whichever was later.
std::optional<MemoryShortage> last_shortage(c10::Device device);
/// From now on LibTorch's allocator of `device` tells, where it has one that does. Once per process and kind of device;
/// more do nothing.
void watch_memory(c10::Device device);

/// LibTorch's allocator of `device` gives back what it keeps for later, so that others than LibTorch find memory there.
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
/// What `error`, thrown on a rank that trains on `device`, comes to: the user's, since there is nothing to try again
/// with.
ErrorReport out_of_memory(const c10::OutOfMemoryError& error, c10::Device device);
/// What helps: settings to try.
std::string memory_remedy(c10::Device device);

}  // namespace troupe
