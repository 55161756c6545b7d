#pragma once
#include "tests/differential/job.hpp"
#include "tests/differential/outcome.hpp"

namespace troupe::differential {

/// The job as plain LibTorch computes it on one rank. Includes no header of Troupe. With `rounding` the first
/// parameters and every gradient are off by up to this share, at random: what a job makes of that shows how well it can
/// be compared. `noise` is the seed of what is drawn for that.
Outcome reference(const Job& job, const Order& order, double rounding = 0, std::uint64_t noise = 1);

}  // namespace troupe::differential
