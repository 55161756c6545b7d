#pragma once
#include <chrono>
#include <vector>

#include "actors/metrics/metric.hpp"

namespace troupe {

/// Where the records of a run go: a file, a port, a server. The metrics actor owns it, and calls it from its own
/// thread. An exception costs this record at most: it is logged the first time, training goes on, and the next
/// record is tried again.
class MetricSink {
 public:
  MetricSink() = default;
  virtual ~MetricSink() = default;
  MetricSink(const MetricSink&) = delete;
  MetricSink& operator=(const MetricSink&) = delete;

  virtual const char* name() const noexcept = 0;
  /// Throws Error with what to do.
  virtual void write(const MetricRecord& record) = 0;
  /// Before the first write, where a rank 0 died: what its metrics.jsonl ends with.
  virtual void take_over(const std::vector<MetricRecord>& written) { (void)written; }
  /// The run is over, or has `failed`: what is still on its way has until `deadline`. Throws Error where something was
  /// lost.
  virtual void finish(std::chrono::steady_clock::time_point deadline, bool failed) { (void)deadline, (void)failed; }
};

}  // namespace troupe
