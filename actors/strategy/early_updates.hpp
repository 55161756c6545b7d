#pragma once
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// Capability of a Strategy that makes a step's update itself, of gradients as they are reduced (early_update).
/// Compute's thread.
class EarlyUpdates {
 public:
  /// Backward of the step's last micro-batch begins; the optimizer would get this rate. True if the update begins now:
  /// it is not seen before end_step commits, and `update` is not called.
  virtual bool begin_update(double lr) = 0;
  /// After end_step committed a step whose update was not begun: applies the gradients that the parameters have. Local.
  virtual void update(Optimizer& optimizer, double lr) = 0;
  /// After after_update, collective: from the next step on begin_update may use this optimizer, and every step has the
  /// same one.
  virtual void prepare_updates(Optimizer& optimizer) = 0;

 protected:
  ~EarlyUpdates() = default;
};

}  // namespace troupe
