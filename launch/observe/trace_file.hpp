#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "launch/config/profile_setting.hpp"
#include "launch/observe/append_file.hpp"
#include "launch/observe/trace_json.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/communicator/clock_offset.hpp"

namespace troupe {

/// A trace's facts of one rank beside its events.
struct TraceRank {
  int rank = 0;
  std::string host;
  TraceTotals totals;
  ClockOffset clock;  ///< to rank 0's
};

/// A run's trace: `trace.json` of all ranks, and for HolisticTraceAnalysis, which wants a file of each,
/// `trace/rank-0.json` …. Written under other names first: a file with its final name is whole. If a write fails, its
/// part is removed and `problem` has the reason; nothing throws.
class TraceFile {
 public:
  /// Removes an earlier trace in `run_dir`.
  TraceFile(std::string run_dir, std::string job_id, ProfileSetting window, int world_size);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  /// `events` as in TracePart; ranks in any order.
  void add(const TraceRank& rank, const std::string& events);
  /// Both names are there when it returns, if there is no problem.
  void finish();
  const std::string& problem() const noexcept { return problem_; }  ///< with the file's name; empty: none
  std::string path() const { return run_dir_ + "/trace.json"; }
  const std::vector<TraceRank>& ranks() const noexcept { return ranks_; }

 private:
  void fail(const Error& error);

  const std::string run_dir_, job_id_;
  const ProfileSetting window_;
  const int world_size_;
  AppendFile all_;
  std::vector<TraceRank> ranks_;
  std::string problem_;
};

/// `run_dir`/trace/rank-….json alone. Returns its name. Throws Error(io).
std::string write_trace_of_rank(const std::string& run_dir, const TraceRank& rank, int world_size,
                                const std::string& events);

/// A line about it at the end: ranks, steps, overlap, how well the clocks fit, ranks that were absent at times, dropped
/// events. `began_with`: ranks of the job when it began.
std::string describe_trace(const std::string& path, const ProfileSetting& window, const std::vector<TraceRank>& ranks,
                           int began_with);

}  // namespace troupe
