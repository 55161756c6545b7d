#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/hosts/host_list.hpp"

namespace troupe {

/// Slurm's allocation, and the place of this process in it.
struct SlurmAllocation {
  std::string job_id;
  std::string step;         ///< of a task of srun: one name for this life of this step; else empty
  std::vector<Host> hosts;  ///< slots are the tasks of each node; Slurm's order, heterogeneous groups one after another
  int node = 0;             ///< index of this node in `hosts`
  int rank = -1;            ///< SLURM_PROCID; -1: no task of an srun step, but a script or a shell that has the job
  int local_rank = -1;      ///< SLURM_LOCALID; -1 likewise
  int gpus = 0;             ///< of this node, SLURM_GPUS_ON_NODE; 0: not known
  std::optional<std::int64_t> end_time;  ///< SLURM_JOB_END_TIME, seconds since 1970
  bool counts_cpus = false;              ///< the job requested no number of tasks, and Slurm counts the CPUs
};

/// Reads Slurm's variables, through `get` (std::getenv by default). A task of an srun step has its step's nodes and
/// tasks. An sbatch script, salloc's shell and its interactive step have the job's, also of all heterogeneous groups:
/// SLURM_STEP_ID decides, since SLURM_PROCID is 0 in a script, too. Nothing outside a Slurm job. Throws Error(usage)
/// naming the variable.
std::optional<SlurmAllocation> read_slurm(const std::function<const char*(const char*)>& get = {});

/// `node[1-3,07],gpu-a[01-02]` in full. Throws Error(usage) that calls the list `variable`; at most kMaxHosts names.
std::vector<std::string> expand_slurm_nodes(std::string_view text, const std::string& variable = "SLURM_JOB_NODELIST");

/// `2(x3),1` as 2, 2, 2, 1. Throws Error(usage) that calls the list `variable`.
std::vector<int> expand_slurm_tasks(std::string_view text, const std::string& variable = "SLURM_TASKS_PER_NODE");

}  // namespace troupe
