#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "actors/metrics/metric_sink.hpp"
#include "launch/observe/mlflow_client.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {

/// Records on their way to an MLflow server, from a separate thread: a slow or missing server delays no other part.
/// Records that it does not take wait, up to kWaiting, and are tried again every few seconds; then the oldest go.
class MlflowSink final : public MetricSink {
 public:
  static constexpr std::size_t kWaiting = 1024;
  static constexpr std::chrono::seconds kPauseAfterFailure{3};

  /// Throws Error(usage) for an invalid URI.
  explicit MlflowSink(MlflowRunInfo info);
  ~MlflowSink() override;
  const char* name() const noexcept override { return "MLflow"; }
  /// Sends the records that the dead rank 0 had not sent. Others are equal to the last digit, and the server keeps one.
  void take_over(const std::vector<MetricRecord>& written) override;
  /// Throws the server's last answer, if that was bad.
  void write(const MetricRecord& record) override;
  /// Throws Error(unavailable) with the number of lost records, the reason, and the file that has them.
  void finish(std::chrono::steady_clock::time_point deadline, bool failed) override;

 private:
  void deliver();
  bool deliver_once(const std::vector<MetricRecord>& records, bool last);

  MlflowClient client_;  // the thread's
  std::mutex mutex_;     // guards the rest
  std::condition_variable changed_;
  std::deque<MetricRecord> waiting_;
  std::optional<ErrorReport> failure_;
  std::size_t dropped_ = 0;
  bool ending_ = false, failed_ = false, ended_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace troupe
