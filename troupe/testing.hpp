#pragma once
// For tests of your own, with Catch2 (include it first) or whatever else has INFO and REQUIRE.
#include "launch/loop/step_profile.hpp"

/// After troupe::run or troupe::main, in the same process: at least this share (0 to 1) of the reducers' time in
/// collectives was hidden behind compute, over all ranks of the process (`--ranks 4`). Says the times where it was
/// less. A run without steps hides nothing.
///
///     char program[] = "train", ranks[] = "--ranks=4";
///     char* arguments[] = {program, ranks};
///     REQUIRE(troupe::run(job, 2, arguments) == 0);
///     REQUIRE_OVERLAP(0.9);
#define REQUIRE_OVERLAP(least)                                      \
  do {                                                              \
    const auto profile_of_run = troupe::profile_of_process().get(); \
    INFO(profile_of_run.describe_overlap());                        \
    REQUIRE(profile_of_run.steps() > 0);                            \
    REQUIRE(profile_of_run.overlap() >= (least));                   \
  } while (false)
