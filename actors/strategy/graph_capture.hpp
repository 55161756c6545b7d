#pragma once
#include <cstdint>
#include <memory>

#include "tensor_io/device/device_graph.hpp"

namespace troupe {

/// Capability of a Strategy whose forward and backward do nothing but launch kernels, so that a micro-batch can be a
/// graph of the device (cuda_graphs). Compute's thread.
class GraphCapture {
 public:
  /// A version number: captured graphs are valid only while it stays the same. It changes where gradients lie elsewhere
  /// or are reduced in another order.
  virtual std::uint64_t captured_layout_version() const = 0;
  /// Which parameters had a gradient in this step so far: a graph stores what comes for the others, and adds to those.
  virtual std::uint64_t gradients_so_far() const = 0;
  /// What is the host's to do for a backward that was written into a graph, each time the graph is replayed.
  class HostPart {
   public:
    virtual ~HostPart() = default;
  };
  /// After begin_backward: what follows of backward, to the end of end_backward, is written into `graph` and not run.
  /// Nothing of it is to be handed on. end_capture, also after an exception, says what a replay's `on_replay` is to do;
  /// `on_replay` comes in the place of autograd and end_backward.
  virtual void begin_capture(DeviceGraph& graph) = 0;
  /// Ends the capture. Returns what `on_replay` gets.
  virtual std::shared_ptr<const HostPart> end_capture() = 0;
  /// Comes in the place of autograd and end_backward when the graph is replayed.
  virtual void on_replay(const HostPart& part) = 0;

 protected:
  ~GraphCapture() = default;
};

}  // namespace troupe
