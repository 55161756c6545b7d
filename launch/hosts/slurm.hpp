#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/hosts/host_list.hpp"

namespace troupe {

/// What Slurm has allotted, and where in it this process is.
struct SlurmAllocation {
  std::string job_id;
  std::vector<Host> hosts;  ///< slots are the tasks of each node; Slurm's order
  int node = 0;             ///< index of this node in `hosts`
  int rank = -1;            ///< SLURM_PROCID; -1: not started by srun as a task
  int local_rank = -1;      ///< SLURM_LOCALID; -1 likewise
};

/// Reads SLURM_JOB_ID, SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE, SLURM_NTASKS_PER_NODE, SLURM_NODEID, SLURMD_NODENAME,
/// SLURM_PROCID and SLURM_LOCALID through `get` (std::getenv by default), and inside srun the names of the step
/// (SLURM_STEP_NODELIST, ...) first. Nothing outside a Slurm job. Throws Error(usage) naming the variable.
std::optional<SlurmAllocation> read_slurm(const std::function<const char*(const char*)>& get = {});

/// `node[1-3,07],gpu-a[01-02]` in full. Throws Error(usage) that calls the list `variable`; at most kMaxHosts names.
std::vector<std::string> expand_slurm_nodes(std::string_view text, const std::string& variable = "SLURM_JOB_NODELIST");

/// `2(x3),1` as 2, 2, 2, 1. Throws Error(usage) that calls the list `variable`.
std::vector<int> expand_slurm_tasks(std::string_view text, const std::string& variable = "SLURM_TASKS_PER_NODE");

}  // namespace troupe
