#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "launch/process/run_of_job.hpp"

namespace troupe {

/// A process's place in its job, from the environment that our launcher or torchrun sets.
struct RankEnvironment {
  bool launched = false;  ///< false: no launcher started this process, it is alone
  int rank = 0;
  int slot = 0;  ///< TROUPE_SLOT, else the rank: ranks may change during a job, a process's slot does not
  std::uint64_t incarnation = 0;  ///< TROUPE_INCARNATION: this life of the slot; 0: not given
  bool spare = false;             ///< TROUPE_SPARE=1: waits until a rank is lost
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;  ///< 0: not given
  std::string
      coordinator_host;  ///< TROUPE_COORDINATOR=host:port, from our launcher; empty: rank 0 hosts the coordinator
  std::uint16_t coordinator_port = 0;
  /// TROUPE_ADDRESS: the address of this node's ranks for the others. Empty: there are other nodes, and it is not
  /// given: the address from which master_addr is reached.
  std::string interface_address = "127.0.0.1";
  std::string keys;  ///< TROUPE_KEYS: a folder with the job's keys; empty: no TLS
  bool insecure =
      false;  ///< TROUPE_INSECURE_NETWORK=1: rank 0 may host the coordinator on an address of the network without keys
  bool recovery = true;     ///< TROUPE_RECOVERY=0: the first rank that is lost ends the job
  bool start_over = false;  ///< TROUPE_START_OVER=1: the job lost its state and begins anew from its last checkpoint
  bool restarted = false;   ///< torchrun has started the job again
  /// From our launcher TROUPE_JOB_ID, TROUPE_RUN_DIR (its logs are there), TROUPE_RUN and TROUPE_CHECKPOINT; from
  /// another launcher only the job's id, TORCHELASTIC_RUN_ID.
  RunOfJob run;
  std::string node = "localhost";  ///< ranks of one node may share memory
};

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID,
/// TROUPE_COORDINATOR, TROUPE_JOB_ID and TROUPE_NODE through `get` (std::getenv by default). Throws Error(usage) naming
/// the variable.
RankEnvironment read_environment(const std::function<const char*(const char*)>& get = {});

}  // namespace troupe
