#pragma once
#include <functional>
#include <memory>

#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// A captured sequence of kernels that can be replayed with one launch: a CUDA graph (NVIDIA, "CUDA C++ Programming
/// Guide", chapter CUDA Graphs). The same kernels run on the same memory each time; what changes from time to time must
/// lie in that memory. The host's part of the work (hooks, messages, whatever reads a clock) is not in it.
///
/// Between `begin` and `end` the calling thread's current stream, and every other thread that works in it (autograd's),
/// writes down and runs nothing: tensors made meanwhile have shapes and no values, and their memory stays the graph's,
/// to be written by each replay. That stream must not be the device's default one, and no other may depend on it.
/// Copies from the host, values that the host reads, and waits are no work of a graph: they throw.
///
/// One thread, but for autograd's between begin and end.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void begin() = 0;
  /// Throws c10::Error where the work can't be a graph.
  virtual void end() = 0;
  /// In the place of `end`, after an exception.
  virtual void give_up() noexcept = 0;
  /// While it is written down: each replay marks `event` here, as DeviceEvent::record would. Streams that the replaying
  /// thread tells to wait after a replay wait for this place of it. `event` was recorded before, and lives as long as
  /// the graph.
  virtual void mark(DeviceEvent& event) = 0;
  /// Puts the work into the calling thread's current stream.
  virtual void replay() = 0;
  /// A kernel that is a function of the host's, on a device that only stands for one: written down as an operator is.
  virtual void run_on_host(std::function<void()> kernel) = 0;
};

using DeviceGraphFactory = std::unique_ptr<DeviceGraph> (*)(c10::Device device);

/// Of devices other than CUDA's: who makes their graphs. Before any is made.
void set_device_graphs(c10::DeviceType type, DeviceGraphFactory make);
/// Whether a device of this kind has graphs.
bool has_device_graphs(c10::DeviceType type) noexcept;
/// Throws Error(usage) where it has none.
std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device);

/// What writes down the calling thread's current stream of `device`; nullptr: its work runs.
DeviceGraph* graph_under_way(c10::Device device) noexcept;

/// Writes down what happens in a scope, in a stream of its own. The last thing in the scope is `end`; without it, the
/// graph is given up.
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
