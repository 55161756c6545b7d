#pragma once
#include <string>
#include <vector>

#include "launch/report/measured_run.hpp"

namespace troupe {

/// How a run ended, why, and what to do next: a sentence each after the word.
struct RunOutcome {
  std::string word;  ///< `finished (exit code 0)`, `stopped`, `failed`, `not finished`
  std::string why, next;
  bool good = false;
};
/// Pure. `run` has a record.
RunOutcome outcome_of(const RunHistory& run);

/// The outcome in a line for the console; if it is not good, why and what to do next in two more. Pure.
std::vector<std::string> outcome_lines(const RunOutcome& outcome, const MeasuredRun& run);

/// The rank that a failure names last is the one that it began with; -1: none.
int rank_in(const std::string& failure);

}  // namespace troupe
