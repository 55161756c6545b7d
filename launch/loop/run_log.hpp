#pragma once
#include <memory>
#include <string>

#include "actors/metrics/metrics.hpp"
#include "launch/loop/console.hpp"
#include "launch/loop/rank.hpp"

namespace troupe {

/// What rank 0 shows and writes down while the others are silent. Whoever is rank 0 now: it changes when the job
/// shrinks. Compute's thread; the work is the metrics actor's.
class RunLog {
 public:
  /// Where a run begins: writes config.toml and run.json. Throws Error(io) where run_dir cannot be made,
  /// Error(unavailable) where metrics_port is taken. A silent one shows nothing on the console but what it can't write
  /// down, and warnings.
  enum class Voice : std::uint8_t { console, silent };
  explicit RunLog(Rank& rank, Voice voice = Voice::console);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  void send(ValidationReport report);
  void send(MetricsReport report);
  /// The last lines of metrics.jsonl are in every rank's notes, and newcomers get them with the model: the rank 0 that
  /// dies takes those with it that it has not written yet, and its successor writes them.
  void keep(const MetricsReport& report);
  /// Something that happened, for the records and the console.
  void note(const std::string& event, const std::string& line, std::int64_t epoch);
  void note_if_skipped(const StepReport& report, std::int64_t epoch);
  /// Writes the membership down where it is another than at the last call. To be called on every rank, after each step.
  void note_membership(std::int64_t epoch);
  /// The run goes on with another rank 0: nothing more is written, and nothing is closed.
  void give_up();
  /// The error that the run ends with.
  void fail(const std::string& error) { error_ = error; }
  /// A line of rank 0's, after everything sent before.
  void line(const std::string& text);
  bool is_silent() const noexcept { return voice_ == Voice::silent; }
  bool has_bar() { return rank_.is_main() && console_->has_bar(); }

 private:
  bool ready();
  void listen(MetricsOptions& options);
  void begin_run();
  void warn_of_slow_settings();
  void open_page();
  std::vector<std::shared_ptr<MetricSink>> open_sinks();
  void warn(const std::string& text) const { console_->warn("metrics: " + text); }

  Rank& rank_;
  const Voice voice_;
  std::shared_ptr<Console> console_;
  std::shared_ptr<MetricSink> page_;  // /metrics, where it was opened before the first report
  MetricsActor metrics_;
  std::uint64_t noted_ = 0;  // generation
  std::string error_;
};

}  // namespace troupe
