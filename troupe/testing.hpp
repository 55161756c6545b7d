#pragma once
// For your own tests, with Catch2, GoogleTest or another framework; before or after its header. Link troupe::testing.
// LibTorch defines a CHECK, too: after this header CHECK is as it was before, for Catch2's.
#pragma push_macro("CHECK")
#undef CHECK
#include <c10/util/Logging.h>

#include "launch/loop/step_profile.hpp"
#include "launch/testing/actor_alone.hpp"
#include "launch/testing/cluster.hpp"
#include "launch/testing/thread_schedule.hpp"
#include "tensor_io/base/error.hpp"
#pragma pop_macro("CHECK")
#ifndef CATCH_VERSION_MAJOR
#undef CHECK
#endif

namespace troupe::testing {

/// Throws Error(mismatch), with the times, if less than `least` (0 to 1) of the last run's communication was hidden, or
/// if it made no step.
inline void require_overlap(double least, const char* where) {
  const auto profile = profile_of_process().get();
  if (profile.steps() == 0) throw Error(ErrorCode::mismatch, where, "no step was made, so nothing was hidden");
  if (profile.overlap() < least)
    throw Error(ErrorCode::mismatch, where, "less than " + std::to_string(least) + " of communication was hidden",
                profile.describe_overlap());
}

}  // namespace troupe::testing

#define TROUPE_TEXT_OF(line) #line
#define TROUPE_WHERE(file, line) file ":" TROUPE_TEXT_OF(line)

/// After troupe::run or troupe::main, in the same process: at least this share (0 to 1) of the reducers' time in
/// collectives was hidden behind compute, over all ranks of the process (`--ranks 4`). Throws if it was less, with the
/// times. A run without steps hides nothing.
///
///     char program[] = "train", ranks[] = "--ranks=4";
///     char* arguments[] = {program, ranks};
///     REQUIRE(troupe::run(job, 2, arguments) == 0);
///     REQUIRE_OVERLAP(0.9);
#define REQUIRE_OVERLAP(least) ::troupe::testing::require_overlap(least, TROUPE_WHERE(__FILE__, __LINE__))
