#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <cctype>
#include <cstdlib>
#include <map>
#include <mutex>

#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/nccl/nccl_types.hpp"
#include "tensor_io/cuda/cuda_graph.hpp"
#include "tensor_io/cuda/device_kernels_cuda.hpp"
#include "tensor_io/cuda/nccl_library.hpp"
#include "tensor_io/cuda/nvtx_ranges.hpp"
#include "tensor_io/device/accelerator.hpp"
#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/memory/memory_shortage.hpp"

namespace troupe {
namespace {

cuda::Number number_of(at::ScalarType dtype) {
  return dtype == at::kHalf ? cuda::Number::f16 : dtype == at::kBFloat16 ? cuda::Number::bf16 : cuda::Number::f32;
}

void check(const char* kernel, int error) {
  if (error == 0) return;
  throw Error(ErrorCode::internal, kernel, std::string("CUDA: ") + cudaGetErrorString(static_cast<cudaError_t>(error)),
              "an earlier kernel may be at fault: CUDA_LAUNCH_BLOCKING=1 shows which");
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// LibTorch's allocator asks for it after it has let go of what it did not need, and of its lock.
void tell_shortage(std::int64_t device, std::size_t requested, std::size_t total, std::size_t free) {
  namespace memory = c10::cuda::CUDACachingAllocator;
  const auto index = static_cast<c10::DeviceIndex>(device);
  MemoryShortage shortage;
  shortage.device = {c10::kCUDA, index};
  shortage.requested = static_cast<std::int64_t>(requested);
  shortage.free = static_cast<std::int64_t>(free);
  shortage.total = static_cast<std::int64_t>(total);
  try {
    const auto stats = memory::getDeviceStats(index);
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    shortage.allocated = stats.allocated_bytes[all].current;
    shortage.reserved = stats.reserved_bytes[all].current;
    std::map<const void*, int> streams{{nullptr, 0}};
    for (const auto& segment : memory::snapshot({0, 0}, /*include_traces=*/false).segments) {
      if (segment.device != index) continue;
      const auto stream = streams.emplace(segment.stream, static_cast<int>(streams.size())).first->second;
      for (const auto& block : segment.blocks) {
        if (block.allocated) shortage.blocks.push_back({static_cast<std::int64_t>(block.size), stream});
      }
    }
  } catch (const std::exception&) {  // an allocator that has no snapshot: what is known so far is said
  }
  note_shortage(std::move(shortage));
}

class CudaAccelerator final : public Accelerator {
 public:
  // Before the driver's first call. Streams share hardware queues beyond this number (8 unless it is set, 32 at most),
  // and one that waits for an event holds up what is behind it in its queue.
  CudaAccelerator() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }
  int device_count() override {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
  }
  std::string problem() override {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "there is no NVIDIA driver";
    int count = 0;
    const auto result = cudaGetDeviceCount(&count);
    if (result == cudaSuccess) return count > 0 ? "" : "the driver sees no device (CUDA_VISIBLE_DEVICES?)";
    return std::string("CUDA: ") + cudaGetErrorString(result);
  }
  std::string versions() override {
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    return "CUDA " + version_text(runtime) + ", driver " + (driver == 0 ? "none" : version_text(driver)) + ", NCCL " +
           nccl_version_text(nccl()->version());
  }
  std::string device_name(int device) override {
    cudaDeviceProp properties{};
    return cudaGetDeviceProperties(&properties, device) == cudaSuccess ? properties.name : "";
  }
  std::string pci_address(int device) override {
    char address[32] = "";
    if (cudaDeviceGetPCIBusId(address, sizeof address, device) != cudaSuccess) return {};
    for (auto& letter : address) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return address;
  }
  SpanRanges& ranges() override { return nvtx_ranges(); }
  std::shared_ptr<NcclApi> nccl() override { return nccl_library(); }
  void watch_memory() override {
    static std::once_flag once;
    std::call_once(once, [] {
      at::globalContext().lazyInitDevice(at::kCUDA);  // there is no allocator of a device before
      try {
        c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(&tell_shortage);
      } catch (const c10::Error&) {  // cudaMallocAsync's takes none: its own text is told then
      }
    });
  }

  at::Tensor pinned(std::int64_t bytes) override {
    const auto on_host = at::TensorOptions().dtype(at::kByte);
    if (bytes == 0) return at::empty({0}, on_host);
    const auto length = static_cast<std::size_t>(bytes);
    auto* const memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto result =
        memory == MAP_FAILED ? cudaErrorMemoryAllocation : cudaHostRegister(memory, length, cudaHostRegisterPortable);
    if (result != cudaSuccess) {
      cudaGetLastError();  // forgotten: this error has it
      if (memory != MAP_FAILED) ::munmap(memory, length);
      throw Error(ErrorCode::unavailable, "pinned memory of " + std::to_string(bytes) + " bytes",
                  std::string("CUDA: ") + cudaGetErrorString(result),
                  "leave fsdp_cpu_offload out, or free memory of the host (free -g, ulimit -l)");
    }
    int device = 0;
    cudaGetDevice(&device);
    return at::from_blob(
        memory, {bytes},
        [length, device](void* data) {
          int before = 0;
          cudaGetDevice(&before);
          cudaSetDevice(device);
          cudaDeviceSynchronize();  // a copy may be under way
          cudaHostUnregister(data);
          cudaSetDevice(before);
          ::munmap(data, length);
        },
        on_host);
  }
  std::unique_ptr<DeviceGraph> make_graph(at::Device device) override { return make_cuda_graph(device); }

  void pack(const at::Tensor& bucket, std::span<const at::Tensor> sources, std::span<const std::int64_t> offsets,
            double scale) override {
    const auto stream = DeviceStream::current(bucket.device());
    const CurrentStream place(stream);
    cuda::PackItems items{};
    for (std::size_t i = 0; i < sources.size(); ++i) {
      items.sources[items.count] = sources[i].const_data_ptr();
      items.offsets[items.count] = offsets[i];
      items.numels[items.count] = sources[i].numel();
      if (++items.count == cuda::kPackItems || i + 1 == sources.size()) {
        check("pack", cuda::pack(bucket.data_ptr(), number_of(bucket.scalar_type()), items,
                                 number_of(sources[0].scalar_type()), static_cast<float>(scale), stream.native()));
        items.count = 0;
      }
    }
  }

  void scale_and_check(const at::Tensor& flat, double scale, const at::Tensor& result) override {
    const auto stream = DeviceStream::current(flat.device());
    const CurrentStream place(stream);
    const auto partials = at::empty({2 * cuda::kPartials}, result.options());
    check("scale_and_check",
          cuda::scale_and_check(flat.data_ptr(), flat.numel(), number_of(flat.scalar_type()), static_cast<float>(scale),
                                partials.data_ptr<double>(), result.data_ptr<double>(), stream.native()));
  }

  void hash_bytes(const at::Tensor& tensor, const at::Tensor& result) override {
    const auto stream = DeviceStream::current(tensor.device());
    const CurrentStream place(stream);
    result.zero_();
    check("hash_bytes", cuda::hash_bytes(tensor.const_data_ptr(), static_cast<std::int64_t>(tensor.nbytes()),
                                         result.data_ptr<std::int64_t>(), stream.native()));
  }

  void dropout_mask(const at::Tensor& mask, std::uint64_t dropped_below, const DropoutKey& key,
                    std::uint64_t subsequence) override {
    const auto stream = DeviceStream::current(mask.device());
    const CurrentStream place(stream);
    check("dropout_mask", cuda::dropout_mask(mask.data_ptr<bool>(), mask.numel(), dropped_below, key.value,
                                             key.there.defined() ? key.there.const_data_ptr<std::int64_t>() : nullptr,
                                             subsequence, stream.native()));
  }
};

}  // namespace

Accelerator* accelerator_of_build() noexcept {
  static CudaAccelerator cuda;
  return &cuda;
}

}  // namespace troupe
