#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/simulator/job.hpp"

namespace troupe::simulator {

/// The job of a seed: 2 to 6 ranks on 1 to 3 hosts, perhaps a spare, and its faults.
JobOptions job_of_seed(std::uint64_t seed);

struct Outcome {
  std::optional<std::string> violation;  ///< `I3: ...`
  std::uint64_t log_hash = 0;
  std::vector<std::string> log;  ///< if it is kept
  std::size_t events = 0, messages = 0;
  std::int64_t steps = 0;
  int starts = 1;
  milliseconds time{0};  ///< simulated
};

Outcome simulate(const JobOptions& options);

/// The same job with as few of its faults as break the same promise still, and with a part of their time.
JobOptions shrink(const JobOptions& options);

}  // namespace troupe::simulator
