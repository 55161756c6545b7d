#pragma once
#include <optional>
#include <string>

#include "launch/hosts/slurm.hpp"
#include "launch/launcher/launcher.hpp"

namespace troupe {

/// Whether srun starts more than one task on a node, though the launcher starts the ranks itself. The first of them
/// throws Error(usage); true: this is another one, which ends without output.
bool is_surplus_task(const SlurmAllocation& allocation);

/// The places of the job's ranks, and its time limit. As a task of srun, once on each node, it sets --nnodes and
/// --node-rank; else it makes a host list. `nproc`: the ranks of each node, if the command line has it. Returns a note
/// for the user; empty: none.
std::string follow_slurm(const SlurmAllocation& allocation, std::optional<int> nproc, LauncherOptions& options,
                         std::chrono::system_clock::time_point now);

/// The output of --dry-run: the ranks on each host, and the commands that start them.
std::string launch_plan(const LauncherOptions& options);

}  // namespace troupe
