#include "tensor_io/cuda/cuda_graph.hpp"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <string>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

using Pool = std::shared_ptr<const at::cuda::MempoolId_t>;

// One for all graphs of a device: they run one after the other, and what one leaves behind is read before the next one
// runs. LibTorch's allocator takes none again that its last graph has left.
Pool pool_of(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, std::weak_ptr<const at::cuda::MempoolId_t>> pools;  // guarded by mutex
  const std::lock_guard lock(mutex);
  auto pool = pools[device.index()].lock();
  if (!pool)
    pools[device.index()] = pool = std::make_shared<const at::cuda::MempoolId_t>(at::cuda::graph_pool_handle());
  return pool;
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(c10::Device device) : device_(device), pool_(pool_of(device)) {}

  void begin() override {
    // What the same work took when it ran is still kept by the allocator, which can't let go of it while a graph is
    // written.
    c10::cuda::CUDACachingAllocator::emptyCache();
    // Other threads (loader, reducer, NCCL's watch) go on calling CUDA meanwhile: only this one's calls are restricted.
    graph_.capture_begin(*pool_, cudaStreamCaptureModeThreadLocal);
  }
  void end() override { graph_.capture_end(); }

  void give_up() noexcept override {
    try {
      graph_.capture_end();
    } catch (const std::exception&) {  // CUDA says again what is wrong, and LibTorch's allocator has not been told of
                                       // the end
      try {
        c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), *pool_);
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it was
      }
    }
    (void)cudaGetLastError();
  }

  void mark(DeviceEvent& event) override {
    const auto stream = DeviceStream::current(device_);
    if (event.native() == nullptr) throw Error(ErrorCode::internal, "cuda_graphs", "an event that was never recorded");
    const auto result = cudaEventRecordWithFlags(static_cast<cudaEvent_t>(event.native()),
                                                 static_cast<cudaStream_t>(stream.native()), cudaEventRecordExternal);
    if (result != cudaSuccess)
      throw Error(ErrorCode::internal, "cuda_graphs", std::string("CUDA: ") + cudaGetErrorString(result));
  }

  void replay() override { graph_.replay(); }

  void run_on_host(std::function<void()>) override {
    throw Error(ErrorCode::internal, "cuda_graphs", "a kernel of the host's");
  }

 private:
  c10::Device device_;
  Pool pool_;  // the graph goes first
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<DeviceGraph> make_cuda_graph(c10::Device device) { return std::make_unique<CudaGraph>(device); }

}  // namespace troupe
