#pragma once
#include <chrono>
#include <string>

#include "actors/coordinator/coordinator.hpp"
#include "launch/process/run_of_job.hpp"

namespace troupe {

/// The interval at which a coordinator's process writes a line to standard output, if its actor answers.
constexpr std::chrono::milliseconds kCoordinatorPulse{500};

struct CoordinatorProcessOptions {
  RunOfJob run;
  int world_size = 1;
  RecoveryOptions recovery;
  std::string chaos;                  ///< parse_chaos's text; empty: none
  std::uint64_t life = 0;             ///< of the coordinator, as in ChaosOptions
  std::string address = "127.0.0.1";  ///< the address to listen on
  int port = 0;                       ///< 0: any
  std::string journal;                ///< its path; empty: none
  int before = 0;                     ///< number of this job's coordinators before it
  bool moved = false;                 ///< its job's processes look first at another place
  bool keys_on_stdin = false;         ///< it begins with JobKeys::framed
  bool insecure = false;              ///< an address of the network without keys
};

/// The job's coordinator as a process: writes `port N` on standard output, then its pulse, and its decisions on
/// standard error; ends when standard input does (the launcher holds the other end). It takes the job over if its
/// journal has a membership, or if it is not the job's first. Returns the exit code.
int run_coordinator(const CoordinatorProcessOptions& options);

}  // namespace troupe
