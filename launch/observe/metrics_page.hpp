#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "actors/metric_sink.hpp"

namespace troupe {

/// Prometheus's /metrics on the loopback interface: the last value of every metric. It has a thread of its own; a client that dawdles keeps
/// other clients waiting and nobody else.
class MetricsPage final : public MetricSink {
 public:
  /// Listens when it returns. Throws Error(unavailable) where the port is taken.
  MetricsPage(std::uint16_t port, const std::string& job_id);
  ~MetricsPage() override;
  const char* name() const noexcept override { return "Prometheus"; }
  void write(const MetricRecord& record) override;
  /// What a scrape would get now, in Prometheus's text format.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
