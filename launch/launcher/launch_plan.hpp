#pragma once
#include <optional>
#include <string>

#include "launch/hosts/slurm.hpp"
#include "launch/launcher/launcher.hpp"

namespace troupe {

/// Whether srun starts more than one task on a node, where the launcher starts the ranks itself. The first of them
/// throws Error(usage); true: this is another one, which ends without a word.
bool is_surplus_task(const SlurmAllocation& allocation);

/// Where the job's ranks run, and until when: as a task of srun, once on each node, what --nnodes and --node-rank say;
/// else a host list. `nproc`: the ranks of each node, if the command line says so. Returns a note for the user; empty:
/// none.
std::string follow_slurm(const SlurmAllocation& allocation, std::optional<int> nproc, LauncherOptions& options,
                         std::chrono::system_clock::time_point now);

/// What --dry-run prints: which ranks run on which host, and how they are started.
std::string launch_plan(const LauncherOptions& options);

}  // namespace troupe
