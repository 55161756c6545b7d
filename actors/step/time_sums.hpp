#pragma once
#include "actors/step/step_report.hpp"

namespace troupe {

/// Where the time of some steps went: sums, in ms, and shares of the steps' time. Pure.
struct TimeSums {
  double step_ms = 0, exposed_ms = 0, reduce_ms = 0, data_ms = 0, inside_ms = 0, optimizer_ms = 0;
  double hidden_ms = 0;  ///< of reduce_ms: at least this ran while compute did not wait
  double validation_ms = 0, checkpoint_ms = 0, batch_queue_ms = 0, bucket_queue_ms = 0;

  void add(const StepReport& report);
  void add(const TimeSums& other);
  /// Of the steps' time, from 0 to 1.
  double share(double ms) const { return step_ms > 0 ? ms / step_ms : 0; }
  /// The share of reduce_ms that is hidden; 1 if nothing was reduced.
  double overlap() const { return reduce_ms > 0 ? hidden_ms / reduce_ms : 1; }
};

}  // namespace troupe
