#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/strategy/own_figures.hpp"
#include "launch/loop/data_position.hpp"
#include "launch/loop/rank.hpp"
#include "launch/loop/run_log.hpp"

namespace troupe {

/// The records of a program's loop, if it keeps any; else its calls do nothing. A loop's steps and validations leave
/// metrics.jsonl, run.json, event files, the page, and lines on the console as far as the log allows. Compute's thread,
/// on every rank.
class LoopRecords {
 public:
  LoopRecords(Rank& rank, const DataPosition& position) : rank_(rank), position_(position) {}

  /// As Rank::keep_records and Rank::show_progress.
  void keep() noexcept { keeps_ = true; }
  void show();
  /// They are kept, and shown on Troupe's console.
  bool are_shown() const noexcept { return log_ && shows_; }
  /// Throws as RunLog.
  void open();
  void set_optimizer(const Optimizer& optimizer) noexcept { optimizer_ = &optimizer; }
  bool has_optimizer() const noexcept { return optimizer_ != nullptr; }
  /// The loop begins, on a replacement in the course of the run; only the first call counts.
  void begin();

  /// A step's place in the loader's data; in another loop it has none.
  struct Place {
    std::int64_t epoch = 0, step_in_epoch = 0;  ///< from 0; from 1, and 0 if there are no epochs
    const Dataset* data = nullptr;              ///< the loader's; nullptr: there is none
  };
  /// Of the step under way.
  Place place_of_step() const;
  void add(const StepReport& report, const Place& place);
  void add(const ValidationReport& report, const Dataset& held_out);
  /// A checkpoint held up the step under way.
  void add_checkpoint(double milliseconds) { state_.checkpoint_ms += milliseconds; }
  /// An event.
  void note(const std::string& event, const std::string& text);
  /// The same, on standard output if Troupe has no console.
  void report(const std::string& event, const std::string& text);
  /// For the console alone.
  void line(const std::string& text);
  /// The same, from rank 0 on standard error if Troupe has no console.
  void log(const std::string& text);
  /// As Rank::end_loop.
  void end(const std::string& error);
  /// The run goes on without this rank.
  void give_up();

 private:
  Place place_of_last_step() const;
  void keep_lost_step(const Place& place);
  OwnFigures::Figures strategy_figures(std::int64_t done) const;
  MetricsReport report_of(const StepWindow& window, const Place& place, std::int64_t done) const;
  void send_metrics(const Place& place);
  void tell_notices(const Dataset& data, std::int64_t epoch);
  double seconds_left(std::int64_t done) const;
  void point_to_run() const;

  /// Of one loop.
  struct State {
    StepWindow window, bar_window;
    double validation_ms = 0, checkpoint_ms = 0;  ///< of the step under way
    std::int64_t epoch = 0;
    bool begun = false;
    std::vector<std::pair<std::string, std::string>>
        early;  ///< notes of a replacement, which has a lost step before them
    std::chrono::steady_clock::time_point began, last_bar;
    std::int64_t began_at_step = 0;
  };

  Rank& rank_;
  const DataPosition& position_;
  bool keeps_ = false, shows_ = false;
  const Optimizer* optimizer_ = nullptr;  // the last one that was seen
  std::unique_ptr<RunLog> log_;           // if records are kept
  State state_;
};

}  // namespace troupe
