#pragma once
#include "actors/metrics/metric_sink.hpp"
#include "launch/observe/append_file.hpp"

namespace troupe {

/// metrics.jsonl: one JSON object a line. A start line voids the lines above it about steps later than its own.
class JsonLines final : public MetricSink {
 public:
  explicit JsonLines(std::string path) : file_(std::move(path)) {}
  const char* name() const noexcept override { return "metrics.jsonl"; }
  void write(const MetricRecord& record) override { file_.append(to_json(record) + "\n"); }

 private:
  AppendFile file_;
};

}  // namespace troupe
