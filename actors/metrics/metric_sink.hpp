#pragma once
#include <chrono>
#include <vector>

#include "actors/metrics/metric.hpp"

namespace troupe {

/// A destination of a run's records: a file, a port, a server. The metrics actor owns it, and calls it from its own
/// thread. An exception costs this record at most: it is logged the first time, training goes on, and the next record
/// is tried again.
class MetricSink {
 public:
  MetricSink() = default;
  virtual ~MetricSink() = default;
  MetricSink(const MetricSink&) = delete;
  MetricSink& operator=(const MetricSink&) = delete;

  virtual const char* name() const noexcept = 0;
  /// Throws Error with a remedy.
  virtual void write(const MetricRecord& record) = 0;
  /// Before the first write, if a rank 0 died: the end of its metrics.jsonl.
  virtual void take_over(const std::vector<MetricRecord>& written) { (void)written; }
  /// The run is over, or has `failed`: records on their way have until `deadline`. Throws Error if some were
  /// lost.
  virtual void finish(std::chrono::steady_clock::time_point deadline, bool failed) { (void)deadline, (void)failed; }
};

}  // namespace troupe
