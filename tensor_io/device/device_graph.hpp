#pragma once
#include <functional>
#include <memory>

#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// A captured sequence of kernels that can be replayed with one launch: a CUDA graph (NVIDIA, "CUDA C++ Programming
/// Guide", chapter CUDA Graphs). The same kernels run on the same memory each time; values that change between replays
/// must lie in that memory. The host's part of the work is not in it (hooks, messages, code that reads a clock).
///
/// Between `begin` and `end` work is captured and does not run, in the calling thread's current stream, for every
/// thread that works in it (autograd's too). Tensors made meanwhile have shapes and no values, and their memory stays
/// the graph's, to be written by each replay. That stream must not be the device's default one, and no other may depend
/// on it. Copies from the host, values that the host reads, and waits can't be in a graph: they throw.
///
/// One thread, but for autograd's between begin and end.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void begin() = 0;
  /// Throws c10::Error if the work can't be a graph.
  virtual void end() = 0;
  /// Instead of `end`, after an exception.
  virtual void give_up() noexcept = 0;
  /// During the capture: each replay marks `event` here, as DeviceEvent::record would. If the replaying thread makes a
  /// stream wait for it after a replay, that stream waits for this place. `event` was recorded before, and lives as
  /// long as the graph.
  virtual void mark(DeviceEvent& event) = 0;
  /// Puts the work into the calling thread's current stream.
  virtual void replay() = 0;
  /// A kernel that is a function of the host's, on a device that only stands for one: captured like an operator.
  virtual void run_on_host(std::function<void()> kernel) = 0;
};

using DeviceGraphFactory = std::unique_ptr<DeviceGraph> (*)(c10::Device device);

/// For devices other than CUDA's: the function that makes their graphs. Before any is made.
void set_device_graphs(c10::DeviceType type, DeviceGraphFactory make);
/// Whether a device of this kind has graphs.
bool has_device_graphs(c10::DeviceType type) noexcept;
/// Throws Error(usage) if it has none.
std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device);

/// The capture of the calling thread's current stream of `device`; nullptr: its work runs.
DeviceGraph* graph_under_way(c10::Device device) noexcept;

/// Captures the work in a scope, in a separate stream. The last thing in the scope is `end`; without it, the graph is
/// given up.
class CaptureScope {
 public:
  CaptureScope(DeviceGraph& graph, const DeviceStream& stream);
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
  void end();

 private:
  DeviceGraph& graph_;
  CurrentStream place_;
  void* stream_;
  bool under_way_ = true;
};

}  // namespace troupe
