#pragma once
#include <string>

#include "tests/differential/job.hpp"
#include "tests/differential/outcome.hpp"
#include "tests/differential/subject.hpp"

namespace troupe::differential {

/// How far two numbers of the job may be apart, as a share of the larger one.
double tolerance(const Job& job);

/// What differs, with both values; empty: nothing does. Bounds go by what the job's types round.
std::string difference(const Job& job, const Outcome& found, const Outcome& right);

/// Runs the job both ways. The first thing that differs, or how the job ended where it should not have; empty: all is
/// right. "rough: " and the difference if the reference in f64, with its gradients rounded, differs from itself, too.
std::string verdict(const Job& job, Ranks ranks = Ranks::threads);

}  // namespace troupe::differential
