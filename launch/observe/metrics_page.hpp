#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "actors/metrics/metric_sink.hpp"

namespace troupe {

/// A small server on the loopback interface: / is a page that follows the run, /records what it asks for, /metrics
/// Prometheus's, the last value of every metric. It has three threads of its own, since a browser keeps connections
/// ready; clients that dawdle keep other clients waiting and nobody else. A request whose Host is no name of this
/// machine's loopback interface is refused: a page from elsewhere may not have its name resolved to here.
class MetricsPage final : public MetricSink {
 public:
  /// Listens when it returns. Throws Error(unavailable) where the port is taken.
  MetricsPage(std::uint16_t port, const std::string& job_id);
  ~MetricsPage() override;
  const char* name() const noexcept override { return "live page"; }
  void write(const MetricRecord& record) override;
  /// What a scrape would get now, in Prometheus's text format.
  std::string text() const;
  /// What the live page would get that asks for the records from number `after` on (LiveRecords).
  std::string records(std::int64_t after) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
