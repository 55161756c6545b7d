#pragma once
#include <torch/torch.h>

#include "actors/step/loss.hpp"
#include "actors/step/step_report.hpp"
#include "tensor_io/layout/named_tensors.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

class Rank;

/// Sees the actions of a rank's loop, from its thread, in every kind of loop. An exception ends the loop. The defaults
/// do nothing.
class LoopWatch {
 public:
  virtual ~LoopWatch() = default;
  /// The model has its first values and is on its device; the strategy has not seen it.
  virtual void built(torch::nn::Module& /*model*/) {}
  /// The strategy has it: rank 0's values are on all ranks.
  virtual void distributed(Rank& /*rank*/) {}
  /// The fields of a batch that the loop gets, (n, ...) each.
  virtual void batch(const NamedTensors& /*fields*/) {}
  /// Of a micro-batch, before its backward.
  virtual void loss(const Loss& /*loss*/) {}
  /// The program keeps checkpoints.
  virtual void keeps_checkpoints() {}
  /// The optimizer that is used instead of the program's: the same one each time. It lives as long as the watch.
  virtual Optimizer& in_place_of(Optimizer& optimizer) { return optimizer; }
  /// A loop over the loader or over uneven batches is at its end, on all ranks.
  virtual void loop_ends() {}
  /// A step is over. All ranks come here: collectives are allowed.
  virtual void stepped(Rank& /*rank*/, Optimizer& /*optimizer*/, const StepReport& /*report*/) {}
};

}  // namespace troupe
