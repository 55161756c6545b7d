#pragma once
#include <optional>
#include <string>
#include <vector>

#include "actors/metrics/metric.hpp"

namespace troupe {

/// The facts of a run in run.json, and of its end in `lock`; empty if they lack them.
struct RunFacts {
  std::string job_id, started, strategy, backend, version, command;
  std::string exit_code;  ///< of the launcher
};

/// The content of a run's folder.
struct RunHistory {
  std::string folder;
  RunFacts facts;
  /// In the order of the file, of one run: train and validation records that no later start voids, and every start,
  /// event and end. A start at step 0 of a job that begins voids all above it: that was another run in the same folder.
  std::vector<MetricRecord> records;
  std::vector<std::string> remarks;  ///< missing or damaged things, a sentence each
};

/// Reads metrics.jsonl and run.json. A torn, damaged or missing part beside whole records is a remark. Throws
/// Error(bad_data) naming the file if it is no folder of a run, if not one line is a record, or if metrics.jsonl is
/// longer than 1 GiB.
RunHistory read_run(const std::string& folder);
/// The same for metrics.jsonl's text, for a run that goes on meanwhile: a torn last line is no remark.
class RunLines {
 public:
  /// One line, without its end.
  void add(const std::string& line);
  std::vector<MetricRecord> take() && { return std::move(records_); }
  const std::vector<MetricRecord>& records() const noexcept { return records_; }
  std::int64_t bad_lines() const noexcept { return bad_; }
  std::int64_t first_bad_line() const noexcept { return first_bad_; }  ///< 1-based

 private:
  void start(const MetricRecord& record);
  std::vector<MetricRecord> records_;
  std::int64_t lines_ = 0, bad_ = 0, first_bad_ = 0;
};

}  // namespace troupe
