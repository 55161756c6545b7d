#pragma once
#include <torch/torch.h>

namespace troupe {

/// A step's micro-batches, for a strategy that decides on their order.
class MicroBatches {
 public:
  virtual ~MicroBatches() = default;
  virtual int count() const = 0;  ///< micro-batches of the step
  /// The program's forward and loss of one micro-batch. Returns the start of backward, scaled; counts the loss. May be
  /// called for the same micro-batch again, with the same random numbers. Throws what forward throws.
  virtual at::Tensor forward(int micro_batch) = 0;
  /// As forward, and counts nothing.
  virtual void try_forward(int micro_batch) = 0;
};

/// Capability of a Strategy that calls forward and backward itself, of all micro-batches of a step at once. Compute's
/// thread.
class MicroBatchOrder {
 public:
  /// Instead of begin_backward, autograd and end_backward. Custom loops call rank.run_micro_batches then.
  virtual void run_micro_batches(MicroBatches& work) = 0;

 protected:
  ~MicroBatchOrder() = default;
};

}  // namespace troupe
