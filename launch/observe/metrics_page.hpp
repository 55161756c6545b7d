#pragma once
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "actors/metrics/metric_sink.hpp"

namespace troupe {

/// A small server on the loopback interface: / is a page that follows the run, /records its data, /metrics
/// Prometheus's, the last value of every metric. It has one thread. It answers GET and HEAD, and reads no request's
/// body. A request is answered if its process is the owner's, or if it has the token: `?token=T`, or `Authorization:
/// Bearer T`. A wrong token is refused from any user. So is a Host that is no name of this machine's loopback
/// interface: a foreign page may have its name resolved to here.
///
/// At most kPlaces connections are open, kPlacesOfOthers of them by other users; each has kBytesOfRequest for its
/// request and kSilence between two bytes.
class MetricsPage final : public MetricSink {
 public:
  static constexpr unsigned kPlaces = 32, kPlacesOfOthers = 8, kBytesOfRequest = 16 << 10, kSilence = 5;  // seconds

  /// Listens when it returns. Without a token only the owner's processes read it. `run`: the run's name. Throws
  /// Error(unavailable) if the port is taken.
  MetricsPage(std::uint16_t port, const std::string& job_id, std::string token = {}, uid_t owner = ::geteuid(),
              std::string run = {});
  ~MetricsPage() override;
  const char* name() const noexcept override { return "live page"; }
  void write(const MetricRecord& record) override;
  /// For any user's browser: with the token.
  std::string address() const;
  /// The present answer to a scrape, in Prometheus's text format.
  std::string text() const;
  /// The answer to the live page's request for the records from number `after` on (LiveRecords).
  std::string records(std::int64_t after) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
