#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "actors/strategy/graph_capture.hpp"
#include "tensor_io/device/device_graph.hpp"

namespace troupe {

/// Forward and backward of one kind of micro-batch, captured.
struct StepGraph {
  // The inputs of a replay, in memory that the graph reads.
  std::vector<at::Tensor> inputs;
  at::Tensor factor;       ///< () f64: of the loss, before backward
  at::Tensor dropout_key;  ///< () i64: of troupe::nn::Dropout
  // Its results.
  at::Tensor loss, correct;  ///< (); correct is undefined if the loss has no count
  std::shared_ptr<const GraphCapture::HostPart> host_part;
  std::unique_ptr<DeviceGraph> graph;  // last: it goes first
};

/// Makes another stream the current one for a scope. It follows the earlier work of the outer stream, whose later work
/// follows it.
class StreamBetween {
 public:
  explicit StreamBetween(const DeviceStream& stream);
  ~StreamBetween();
  StreamBetween(const StreamBetween&) = delete;
  StreamBetween& operator=(const StreamBetween&) = delete;

 private:
  DeviceStream outer_, stream_;
  DeviceEvent before_, after_;
  std::optional<CurrentStream> place_;
};

}  // namespace troupe
