#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/compute/compute_core.hpp"
#include "actors/compute/graph_kinds.hpp"
#include "actors/compute/late_vote.hpp"
#include "actors/compute/step_graphs.hpp"
#include "actors/compute/step_losses.hpp"
#include "actors/step/loss.hpp"
#include "tensor_io/layers/dropout.hpp"

namespace troupe {

/// A micro-batch whose forward and backward may be a graph of the device (cuda_graphs).
struct GraphedMicroBatch {
  std::vector<at::Tensor> inputs;  ///< on the device; all that changes from one micro-batch to the next
  double samples = 0, weight = 1;  ///< as MicroBatchLoss has them
  std::string kind;                ///< other values on the host that forward depends on: another graph for each
  /// Called with `inputs`, or with tensors of their shapes that have no values, or not at all. It only launches
  /// kernels. Returns a mean.
  std::function<Loss(const std::vector<at::Tensor>& inputs)> forward;
};

/// Micro-batches as graphs of the device: the kernels of forward and backward are launched with one call. The host's
/// part of a step stays as it is: the reducer launches the collectives, behind marks that the graph sets. Compute's
/// thread.
class MicroBatchGraphs {
 public:
  /// nullptr if the options do not ask for graphs, or this rank trains on the CPU. `late`: nullptr if the host decides
  /// on steps. Throws Error(usage) if graphs are not possible.
  static std::unique_ptr<MicroBatchGraphs> make(ComputeCore& core, StepLosses& losses, LateVote* late);
  MicroBatchGraphs(ComputeCore& core, StepLosses& losses, LateVote* late);

  struct Turn {
    GraphKinds::Turn what;
    StepGraph* graph;  ///< of `write` and `replay`
  };
  /// The turn of this micro-batch, which may be the first or last of its step. All graphs begin anew if the strategy's
  /// layout has changed since the last call.
  Turn next(const GraphedMicroBatch& micro_batch, bool first, bool last);
  /// The stream on which all of a micro-batch is launched, also one that is `run` kernel by kernel.
  const DeviceStream& stream() const noexcept { return stream_; }
  /// `write` and `replay`, after the strategy's begin_backward: forward and backward, to the end of end_backward.
  void run(const Turn& turn, const GraphedMicroBatch& micro_batch, const ForwardPosition& position);
  /// A generation begins: so do all graphs. The old ones are kept until the device is past them.
  void forget();
  std::size_t written() const noexcept { return kinds_.written(); }

 private:
  void write(StepGraph& graph, const GraphedMicroBatch& micro_batch);
  void replay(StepGraph& graph, const GraphedMicroBatch& micro_batch, const ForwardPosition& position);
  at::Tensor start_of_backward(const at::Tensor& loss, const at::Tensor& factor) const;

  ComputeCore& core_;
  StepLosses& losses_;
  LateVote* late_;
  /// Autograd keeps a stream with a parameter: it must be the one of the capture.
  DeviceStream stream_;
  GraphKinds kinds_;
  using Graphs = std::map<std::string, StepGraph>;
  Graphs graphs_;
  struct Old {
    Graphs graphs;
    DeviceEvent over;
  };
  std::vector<Old> old_;
  std::uint64_t layout_ = 0;  // of the strategy, as the graphs have it
  std::string kind_;          // of the micro-batch that next was asked about
};

}  // namespace troupe
