#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "actors/coordinator/coordinator.hpp"
#include "launch/hosts/host_list.hpp"
#include "launch/launcher/rank_processes.hpp"
#include "launch/launcher/start_over.hpp"
#include "launch/process/run_of_job.hpp"
#include "launch/run/run_identity.hpp"

namespace troupe {

struct LauncherOptions {
  int nproc = 1;            ///< ranks on this machine, if there is no host list
  std::vector<Host> hosts;  ///< empty: this machine alone
  int spares = 0;           ///< processes that wait for a rank to die
  RecoveryOptions recovery;
  std::chrono::milliseconds time_limit{0};  ///< after it the job is asked to stop; 0: there is none
  std::optional<std::chrono::steady_clock::time_point> stop_at;  ///< ... at this time, which launch() knows
  std::string chaos;                    ///< parse_chaos's text: hurts ranks on purpose; empty: it does not
  std::string run_dir = kNewRunFolder;  ///< rank<k>.log, the journal
  std::string troupe_program;           ///< our own executable, for coordinator and agents
  std::vector<std::string> command;     ///< the program and its arguments
  std::string
      address;  ///< the coordinator's; empty: loopback, or the address from which the first of the hosts can be reached
  std::vector<std::string> ssh_arguments;  ///< e.g. -F config
  std::string remote_troupe;               ///< our executable on the hosts; empty: the same path as here
  int nnodes = 0, node_rank = 0;           ///< the same command was typed on each of `nnodes` nodes; 0: not
  std::string keys;       ///< if the same command is typed on each node: a folder of `troupe keys`; empty: none
  std::string step;       ///< of srun: names a folder below run_dir where node 0 leaves the others' keys; empty: none
  bool insecure = false;  ///< no keys: any process that reaches the coordinator may steer the job
  int min_nnodes = 0;     ///< this many are enough to begin, the others may join later; 0: all
  std::string master_addr = "127.0.0.1";  ///< ... the address of node 0
  int master_port = 29500;
  /// Called once the run's folder is this job's, before a rank starts; again if the job begins anew. May be empty.
  std::function<void(const std::string& folder)> on_run_folder;
  std::function<void()> on_output;  ///< called each time that all present output has been shown. May be empty.
};

/// Starts a coordinator and the ranks, here or through an agent on each host. Shows their output with the rank before
/// each line and writes it to their logs; restarts a dead coordinator; waits for all. Returns the exit code: 0, the
/// failing rank's, or 128 + signal after Ctrl-C, SIGTERM or SIGHUP. The ranks get these as a request to finish their
/// step; a second one kills them. A job that has lost its state begins anew from its last checkpoint, as often as a
/// slot may restart, but not if the same command was typed on each node. No process is left behind, whatever happens.
/// The run's folder is locked meanwhile; if the same command was typed on each node, the others get its name from node
/// 0's coordinator. Main thread only. Throws Error if nothing could be started.
int launch(const LauncherOptions& options);

/// One host's agent (`troupe node`): runs its ranks until they have ended, or until standard input ends, which the
/// launcher holds. It finds out the program's path, its own address and the keys. Main thread only.
int run_node(RankProcessOptions ranks);

}  // namespace troupe
