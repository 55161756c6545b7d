#pragma once
#include "launch/loop/rank.hpp"
#include "tests/differential/notes.hpp"

namespace troupe::differential {

/// One run of a job: its only one, or one of the two of a job that is resumed.
struct Run {
  Job job;
  Config config;
  std::int64_t stop_after = 0;  ///< steps; 0: it goes on to its end
};

/// Is the optimizer one of torch::optim?
/// Adds the strategy and the hook that are a user's: examples/custom_strategy and owing_hook.hpp.
void add_extensions();

bool is_torch(const Job& job);

/// A rank's life in a run, on the rank's thread: the program that a user would write. `job` outlives it.
void live(const Job& job, std::int64_t stop_after, Rank& rank, const TakeNote& note);

}  // namespace troupe::differential
