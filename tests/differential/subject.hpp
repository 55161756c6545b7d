#pragma once
#include <string>

#include "tests/differential/job.hpp"
#include "tests/differential/outcome.hpp"

namespace troupe::differential {

/// The job as Troupe runs it, on ranks that are threads of this process. `folder` is for its files. `order` gets the
/// numbers of the samples in the order in which they were handed out.
Outcome subject(const Job& job, const std::string& folder, Order& order);

}  // namespace troupe::differential
