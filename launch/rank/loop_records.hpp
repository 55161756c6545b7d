#pragma once
#include <cstdint>
#include <string>

#include "launch/rank/run_log.hpp"

namespace troupe {

/// The records of a program with a loop of its own: metrics.jsonl, run.json, event files and the page, as troupe::run
/// writes them. The console is the program's. Compute's thread, on every rank.
class LoopRecords {
 public:
  /// Throws what RunLog throws.
  explicit LoopRecords(Rank& rank) : rank_(rank), log_(rank, RunLog::Voice::silent) {}
  /// After a step. `epoch`, `step_in_epoch`: of the loader's cursor; 0 where there is none.
  struct Place {
    std::int64_t epoch = 0, step_in_epoch = 0, tokens_per_sample = 0;
  };
  void add(const StepReport& report, const Place& place);
  void note(const std::string& event, const std::string& line) { log_.note(event, line, place_.epoch); }
  /// The error that the run ends with.
  void fail(const std::string& error) { log_.fail(error); }

 private:
  Rank& rank_;
  RunLog log_;
  StepWindow window_;
  Place place_;
};

}  // namespace troupe
