#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "actors/metrics/metrics.hpp"
#include "launch/loop/console.hpp"
#include "launch/loop/rank.hpp"

namespace troupe {

/// Rank 0's output and records, while the others are silent. Every rank has one, since rank 0 changes when the job
/// shrinks. Compute's thread; the work is the metrics actor's.
class RunLog {
 public:
  /// The start of a run: writes config.toml and run.json. Throws Error(io) if run_dir cannot be made,
  /// Error(unavailable) if metrics_port is taken. A silent one shows only warnings on the console, and the records that
  /// it can't write.
  enum class Voice : std::uint8_t { console, silent };
  explicit RunLog(Rank& rank, Voice voice = Voice::console);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  void send(ValidationReport report);
  void send(MetricsReport report);
  /// The last lines of metrics.jsonl are in every rank's notes, and newcomers get them with the model. If rank 0 dies
  /// before it has written some, its successor writes them.
  void keep(const MetricRecord& record);
  /// An event, for the records and the console.
  void note(const std::string& event, const std::string& line, std::int64_t epoch);
  void note_if_skipped(const StepReport& report, std::int64_t epoch);
  /// Records the membership if it differs from the last call's. To be called on every rank, after each step.
  void note_membership(std::int64_t epoch);
  /// The run goes on with another rank 0: this writes and closes nothing more.
  void give_up();
  /// The error that ends the run.
  void fail(const std::string& error) { error_ = error; }
  /// A line of rank 0, after everything sent before.
  void line(const std::string& text);
  bool is_silent() const noexcept { return voice_ == Voice::silent; }
  bool has_bar() { return rank_.is_main() && console_->has_bar(); }

 private:
  bool ready();
  void listen(MetricsOptions& options);
  void end_metrics(caf::exit_reason reason, std::chrono::milliseconds patience);
  void begin_run();
  void warn_of_slow_settings();
  void open_page();
  std::vector<std::shared_ptr<MetricSink>> open_sinks();
  void warn(const std::string& text) const { console_->warn("metrics: " + text); }

  Rank& rank_;
  const Voice voice_;
  std::shared_ptr<Console> console_;
  std::shared_ptr<MetricSink> page_;  // /metrics, if it was opened before the first report
  MetricsActor metrics_;
  std::uint64_t noted_ = 0;  // generation
  std::string error_;
};

}  // namespace troupe
