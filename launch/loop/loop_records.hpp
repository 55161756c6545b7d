#pragma once
#include <memory>
#include <string>

#include "launch/loop/data_position.hpp"
#include "launch/loop/rank.hpp"
#include "launch/loop/run_records.hpp"

namespace troupe {

/// The records of a program's loop, if it keeps any; else its calls do nothing. Compute's thread.
class LoopRecords {
 public:
  LoopRecords(Rank& rank, const DataPosition& position) : rank_(rank), position_(position) {}

  /// As Rank::keep_records and Rank::show_progress.
  void keep() noexcept { keeps_ = true; }
  void show();
  /// They are kept, and shown on Troupe's console.
  bool are_shown() const noexcept { return records_ && shows_; }
  void open();
  void set_optimizer(const Optimizer& optimizer) noexcept { optimizer_ = &optimizer; }
  bool has_optimizer() const noexcept { return optimizer_ != nullptr; }
  /// The loop begins; only the first call counts.
  void begin();

  /// Of the step under way.
  RunRecords::Place place_of_step() const;
  void add(const StepReport& report, const RunRecords::Place& place);
  void add(const ValidationReport& report, const Dataset& held_out);
  void add_checkpoint(double milliseconds);
  /// Something that happened.
  void note(const std::string& event, const std::string& text);
  /// The same, on standard output if Troupe has no console.
  void report(const std::string& event, const std::string& text);
  /// For the console alone.
  void line(const std::string& text);
  /// The same, from rank 0 on standard error if Troupe has no console.
  void log(const std::string& text);
  /// As Rank::end_loop.
  void end(const std::string& error);

 private:
  Rank& rank_;
  const DataPosition& position_;
  bool keeps_ = false, shows_ = false;
  const Optimizer* optimizer_ = nullptr;  // the one that was seen last
  std::unique_ptr<RunRecords> records_;
};

}  // namespace troupe
