#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>

#include "tensor_io/base/span_ranges.hpp"
#include "tensor_io/device/device_graph.hpp"
#include "tensor_io/device/dropout_key.hpp"

namespace troupe {

class NcclApi;

/// The part of a build with CUDA that LibTorch does not have. It is an interface, so that no other file is compiled
/// differently for it: one of two files is linked, cuda_accelerator.cpp or no_accelerator.cpp.
class Accelerator {
 public:
  virtual ~Accelerator() = default;
  /// Devices that this process may use; 0 if there is no driver.
  virtual int device_count() = 0;
  /// Why there is no device.
  virtual std::string problem() = 0;
  /// `CUDA 13.0, driver 13.0, NCCL 2.28.9`.
  virtual std::string versions() = 0;
  virtual std::string device_name(int device) = 0;
  /// `0000:18:00.0`: its place on the PCI bus, as Linux writes it; empty if the driver does not know it.
  virtual std::string pci_address(int device) = 0;
  /// NVTX's ranges; they live as long as the process. Without a profiler a call does nothing.
  virtual SpanRanges& ranges() = 0;
  virtual std::shared_ptr<NcclApi> nccl() = 0;
  /// LibTorch's allocator calls note_shortage from now on. Once per process; more do nothing.
  virtual void watch_memory() = 0;
  /// (bytes,) u8 on the host, zeros, for copies to and from devices that the host does not wait for. It has this size,
  /// where LibTorch's has the next power of two; making it takes the time to touch each page. For memory that stays.
  virtual at::Tensor pinned(std::int64_t bytes) = 0;
  /// Of LibTorch's own kind, so that its allocator and its generator know it. All share one pool of memory.
  virtual std::unique_ptr<DeviceGraph> make_graph(at::Device device) = 0;

  // The kernels of device_kernels.hpp, on the current stream of the tensors' device; arguments are checked.
  virtual void pack(const at::Tensor& bucket, std::span<const at::Tensor> sources,
                    std::span<const std::int64_t> offsets, double scale) = 0;
  virtual void scale_and_check(const at::Tensor& flat, double scale, const at::Tensor& result) = 0;
  virtual void hash_bytes(const at::Tensor& tensor, const at::Tensor& result) = 0;
  /// Of dropout.hpp: bool, contiguous; an element is kept if its number is not below `dropped_below`.
  virtual void dropout_mask(const at::Tensor& mask, std::uint64_t dropped_below, const DropoutKey& key,
                            std::uint64_t subsequence) = 0;
};

/// nullptr in a build without CUDA.
Accelerator* accelerator() noexcept;
/// `stand_in` takes its place; nullptr: no more. For tests, while no other thread asks. Not owned.
void set_accelerator(Accelerator* stand_in) noexcept;

/// The one of the file that is linked.
Accelerator* accelerator_of_build() noexcept;

}  // namespace troupe
