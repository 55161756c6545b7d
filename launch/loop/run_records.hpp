#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "launch/loop/run_log.hpp"

namespace troupe {

/// What a loop's steps and validations leave behind: metrics.jsonl, run.json, event files, the page, and on the console
/// what its voice lets through. Compute's thread, on every rank.
class RunRecords {
 public:
  /// Throws what RunLog throws.
  RunRecords(Rank& rank, RunLog::Voice voice) : rank_(rank), log_(rank, voice) {}

  /// Where in the loader's data a step lies; in another loop nowhere.
  struct Place {
    std::int64_t epoch = 0, step_in_epoch = 0;  ///< from 0; from 1, and 0 where there are no epochs
    const Dataset* data = nullptr;              ///< the loader's; nullptr: there is none
  };
  /// The loop begins behind `last_step`, which was done at rate `lr`; on a replacement this is in the course of the
  /// run. Once.
  void begin(const Place& last_step, double lr);
  bool has_begun() const noexcept { return begun_; }
  /// After a step.
  void add(const StepReport& report, const Place& place);
  void add(const ValidationReport& report, const Dataset& held_out);
  void add_checkpoint(double ms) { checkpoint_ms_ += ms; }  ///< what it held up the step under way
  /// Something that happened: for the records, and the console.
  void note(const std::string& event, const std::string& text);
  /// A line of rank 0's for the console.
  void line(const std::string& text) { log_.line(text); }
  /// The error that the run ends with.
  void fail(const std::string& error) { log_.fail(error); }

 private:
  void keep_lost_step(const Place& place, double lr);
  MetricsReport report_of(const StepWindow& window, const Place& place, std::int64_t done) const;
  void show(const Place& place);
  void tell_notices(const Dataset& data, std::int64_t epoch);
  double seconds_left(std::int64_t done) const;

  Rank& rank_;
  RunLog log_;
  StepWindow window_, bar_window_;
  double validation_ms_ = 0, checkpoint_ms_ = 0;  // of the step under way
  std::int64_t epoch_ = 0;
  bool begun_ = false;
  std::vector<std::pair<std::string, std::string>> early_;  // notes of a replacement, which has a lost step before them
  std::chrono::steady_clock::time_point began_, last_bar_;
  std::int64_t began_at_step_ = 0;
};

}  // namespace troupe
