#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace troupe {

/// The output of a detached launcher, in the run's folder.
std::string job_log_of(const std::string& folder);
/// The log's last line: the end of the launcher.
std::string end_line(int exit_code);

/// Shows the new lines of a job's log on standard output. One thread. Throws Error(io, bad_data) if it is a link, a
/// pipe or another user's; one that is not there is empty.
class JobLog {
 public:
  /// From byte `begin` on.
  JobLog(std::string path, std::uint64_t begin) : path_(std::move(path)), next_(begin) {}
  /// From its last `lines` lines on.
  static JobLog last_lines(const std::string& path, int lines);

  void show_new();
  /// Of a log that no living job writes: any program may have. What is not printable ASCII is shown as \xNN.
  void show_foreign();
  /// The exit code, if the last line that was shown is an end_line.
  std::optional<int> exit_code() const;

 private:
  std::string take_new();
  std::string path_, last_;
  std::uint64_t next_ = 0;
};

}  // namespace troupe
