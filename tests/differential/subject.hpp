#pragma once
#include <string>

#include "tests/differential/job.hpp"
#include "tests/differential/outcome.hpp"

namespace troupe::differential {

/// What the ranks of a job are: threads of this process, or a process each that `troupe launch` starts.
enum class Ranks { threads, processes };

/// The job as Troupe runs it. `folder` is for its files. `order` gets the numbers of the samples in the order in which
/// they were handed out. Main thread.
Outcome subject(const Job& job, const std::string& folder, Order& order, Ranks ranks);

}  // namespace troupe::differential
