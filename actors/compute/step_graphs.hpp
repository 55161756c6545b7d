#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/compute/graph_kinds.hpp"
#include "actors/strategy/graph_capture.hpp"
#include "tensor_io/device/device_graph.hpp"

namespace troupe {

/// Forward and backward of one kind of micro-batch, written down.
struct StepGraph {
  // What a replay is given, in memory that the graph reads.
  std::vector<at::Tensor> inputs;
  at::Tensor factor;       ///< () f64: of the loss, before backward
  at::Tensor dropout_key;  ///< () i64: of troupe::nn::Dropout
  // What it leaves.
  at::Tensor loss, correct;  ///< (); correct is undefined where nobody counts
  std::shared_ptr<const GraphCapture::HostPart> host_part;
  std::unique_ptr<DeviceGraph> graph;  // last: it goes first
};

/// A rank's graphs. Compute's thread.
class StepGraphs {
 public:
  explicit StepGraphs(c10::Device device) : stream(DeviceStream::from_pool(device, false)) {}

  struct Turn {
    GraphKinds::Turn what;
    StepGraph* graph;  ///< of `write` and `replay`
  };

  /// What is to be done with a micro-batch of this kind, where the strategy's graphs `fit` as when the last one came,
  /// or all begin anew.
  Turn next(const std::string& kind, std::uint64_t fit);
  /// It could not be written.
  void drop(const std::string& kind);
  /// All begin anew. The old ones are kept until the device is past them.
  void forget();
  std::size_t written() const noexcept { return kinds_.written(); }

  /// Where micro-batches are written down, and run before: what autograd keeps of a parameter must not name another
  /// stream.
  DeviceStream stream;

 private:
  using Graphs = std::map<std::string, StepGraph>;
  struct Old {
    Graphs graphs;
    DeviceEvent over;
  };
  GraphKinds kinds_;
  Graphs graphs_;
  std::vector<Old> old_;
  std::uint64_t fit_ = 0;
};

/// Makes another stream the current one for a scope, between what is in the current one before it and what comes after
/// it.
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
