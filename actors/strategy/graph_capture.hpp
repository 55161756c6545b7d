#pragma once
#include <cstdint>
#include <memory>

#include "tensor_io/device/device_graph.hpp"

namespace troupe {

/// Capability of a Strategy whose forward and backward only launch kernels, so that a micro-batch can be a graph of the
/// device (cuda_graphs). Compute's thread.
class GraphCapture {
 public:
  /// A version number: captured graphs are valid only while it stays the same. It changes if gradients lie elsewhere or
  /// are reduced in another order.
  virtual std::uint64_t captured_layout_version() const = 0;
  /// The parameters that had a gradient in this step so far: a graph adds to these, and stores the others' gradients.
  virtual std::uint64_t gradients_so_far() const = 0;
  /// The host's work for a captured backward, each time the graph is replayed.
  class HostPart {
   public:
    virtual ~HostPart() = default;
  };
  /// After begin_backward: the rest of backward, to the end of end_backward, is captured into `graph` and not run.
  /// Nothing of it may be handed on. end_capture, also after an exception, returns the work of a replay; `on_replay`
  /// comes instead of autograd and end_backward.
  virtual void begin_capture(DeviceGraph& graph) = 0;
  /// Ends the capture. Returns the argument of `on_replay`.
  virtual std::shared_ptr<const HostPart> end_capture() = 0;
  /// Comes instead of autograd and end_backward when the graph is replayed.
  virtual void on_replay(const HostPart& part) = 0;

 protected:
  ~GraphCapture() = default;
};

}  // namespace troupe
