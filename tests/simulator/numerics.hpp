#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/program/simulated_process.hpp"

namespace troupe::simulator {

/// Something that happens to one life of a slot when it comes by a place of a step.
struct NumericsFault {
  int slot = 0, life = 0;
  PlacedFault fault;

  std::string to_string() const;
};

/// A training job with its true numerics, and what goes wrong in it.
struct NumericsJob {
  std::string strategy = "ddp";
  std::string backend = "shm";
  int ranks = 2;
  std::int64_t nan_step = -1;  ///< in which rank 0's loss is not a number, however often it is run; -1: none
  std::vector<NumericsFault> faults;
  std::string comm_hook = "none";  ///< a hook that keeps what it owes on each rank loses it with a rank
};

/// The job of a seed: ddp or fsdp, over shared memory or sockets, on 2 to 4 ranks, one to four faults.
NumericsJob numerics_job_of_seed(std::uint64_t seed);

struct NumericsOutcome {
  std::optional<std::string> violation;  ///< what differs from the undisturbed job
  int generations = 1;                   ///< memberships
  int starts = 1;                        ///< 1 and as often as all began anew from a checkpoint
};

/// Runs the job in this process and holds it against the undisturbed one, which it runs first where it has not before:
/// the loss of every step, each written once; the tensors of the last checkpoint, bit by bit. `log` gets the
/// coordinator's lines; may be empty. One at a time.
NumericsOutcome run_numerics(const NumericsJob& job, const std::function<void(const std::string&)>& log = {});

}  // namespace troupe::simulator
