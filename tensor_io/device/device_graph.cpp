#include "tensor_io/device/device_graph.hpp"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/device/accelerator.hpp"

namespace troupe {
namespace {

struct UnderWay {
  std::mutex mutex;
  std::map<const void*, DeviceGraph*> by_stream;  // guarded by mutex: ranks of one process write at once
};

UnderWay& under_way() {
  static UnderWay graphs;
  return graphs;
}

std::atomic<int> writing{0};  // asked by every kernel: it is nearly always none
DeviceGraphFactory other_device = nullptr;
c10::DeviceType other_type = c10::kCPU;

}  // namespace

void set_device_graphs(c10::DeviceType type, DeviceGraphFactory make) {
  other_type = type;
  other_device = make;
}

bool has_device_graphs(c10::DeviceType type) noexcept {
  return (type == c10::kCUDA && accelerator() != nullptr) || (other_device != nullptr && type == other_type);
}

std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device) {
  if (other_device != nullptr && device.type() == other_type) return other_device(device);
  if (device.is_cuda() && accelerator() != nullptr) return accelerator()->make_graph(device);
  throw Error(ErrorCode::usage, "cuda_graphs", "device " + device.str() + " does not support graphs", "leave it out");
}

DeviceGraph* graph_under_way(c10::Device device) noexcept {
  if (writing.load(std::memory_order_acquire) == 0 || device.is_cpu()) return nullptr;
  const auto* const stream = DeviceStream::current(device).native();
  auto& graphs = under_way();
  const std::lock_guard lock(graphs.mutex);
  const auto found = graphs.by_stream.find(stream);
  return found == graphs.by_stream.end() ? nullptr : found->second;
}

CaptureScope::CaptureScope(DeviceGraph& graph, const DeviceStream& stream)
    : graph_(graph), place_(stream), stream_(stream.native()) {
  try {
    graph_.begin();
  } catch (...) {
    graph_.give_up();
    throw;
  }
  auto& graphs = under_way();
  const std::lock_guard lock(graphs.mutex);
  graphs.by_stream[stream_] = &graph_;
  writing.fetch_add(1, std::memory_order_release);
}

void CaptureScope::end() {
  graph_.end();
  under_way_ = false;
}

CaptureScope::~CaptureScope() {
  {
    auto& graphs = under_way();
    const std::lock_guard lock(graphs.mutex);
    graphs.by_stream.erase(stream_);
    writing.fetch_sub(1, std::memory_order_release);
  }
  if (under_way_) graph_.give_up();
}

}  // namespace troupe
