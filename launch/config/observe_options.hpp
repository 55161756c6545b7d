#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// What rank 0 tells about a run while it goes on, besides run_dir/metrics.jsonl.
struct ObserveOptions {
  bool progress_bar = true;  ///< on a terminal
  bool tensorboard = true;   ///< event files in run_dir/tensorboard
  std::int64_t metrics_port =
      0;                   ///< of the live page and Prometheus's /metrics, on rank 0's loopback interface; 0: none
  std::string mlflow_uri;  ///< of a tracking server, http://127.0.0.1:5000 say; empty: none
  std::string mlflow_experiment = "Default";  ///< is made where there is none
};

}  // namespace troupe
