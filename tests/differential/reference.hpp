#pragma once
#include "tests/differential/job.hpp"
#include "tests/differential/outcome.hpp"

namespace troupe::differential {

/// The job as plain LibTorch computes it on one rank. Includes no header of Troupe.
Outcome reference(const Job& job, const Order& order);

}  // namespace troupe::differential
