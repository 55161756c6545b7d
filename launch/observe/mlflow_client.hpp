#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/metrics/metric.hpp"

namespace troupe {

/// The facts of a run for MLflow when the run begins.
struct MlflowRunInfo {
  std::string uri;  ///< of the tracking server: http://127.0.0.1:5000, https://host/prefix
  std::string experiment = "Default";
  std::string run_name;
  std::string run_id;  ///< a tag, percent-encoded: a rank 0 that takes over, and a further life of the run, find it
  std::map<std::string, std::string> tags, parameters;
  std::string kept;  ///< the file that has the same records; empty if none has
};

/// One run on an MLflow server, over its REST API (2.0). Every call waits a few seconds at most. One thread. Everything
/// throws Error(unavailable) with the server's answer.
///
/// MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, are sent along as MLflow's own
/// clients do: over https, to this machine, or with TROUPE_INSECURE_MLFLOW=1. An answer is read up to kMostBytes.
class MlflowClient {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{16} << 20;

  /// Throws Error(usage) for an invalid URI, one with a password in it, or one to which a password would go in plain
  /// text. Returns its scheme and host.
  static std::string server_of(const std::string& uri);
  /// Throws as `server_of`.
  explicit MlflowClient(MlflowRunInfo info);
  ~MlflowClient();
  MlflowClient(const MlflowClient&) = delete;
  MlflowClient& operator=(const MlflowClient&) = delete;

  /// Finds the experiment and the run, makes missing ones. A parameter that has changed since an earlier life of the
  /// run becomes the tag `now.NAME`: MLflow changes none. Does nothing once it has succeeded.
  void begin();
  void log(const std::vector<MetricRecord>& records);
  const MlflowRunInfo& info() const noexcept { return info_; }
  /// `status`: FINISHED, FAILED.
  void end(const std::string& status);
  /// Any thread: ends the call under way, and refuses later ones.
  void stop() noexcept;

 private:
  struct Connection;
  std::string find_experiment();
  struct FoundRun {
    std::string id;
    std::map<std::string, std::string> parameters;  // on the server, which keeps them
  };
  FoundRun find_run(const std::string& experiment);

  const MlflowRunInfo info_;
  std::unique_ptr<Connection> connection_;
  std::string run_id_;
};

}  // namespace troupe
