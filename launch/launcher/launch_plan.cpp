#include "launch/launcher/launch_plan.hpp"

#include <algorithm>

#include "launch/process/stop_signals.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

std::string counted(int n, const std::string& thing) { return std::to_string(n) + " " + thing + (n == 1 ? "" : "s"); }

std::string ranks_from(int first, int count) {
  if (count == 1) return "rank " + std::to_string(first);
  return "ranks " + std::to_string(first) + " to " + std::to_string(first + count - 1);
}

}  // namespace

bool is_surplus_task(const SlurmAllocation& allocation) {
  if (allocation.rank < 0) return false;
  const auto several =
      std::find_if(allocation.hosts.begin(), allocation.hosts.end(), [](const Host& host) { return host.slots > 1; });
  if (several == allocation.hosts.end()) return false;
  if (allocation.rank > 0) return true;
  const auto n = std::to_string(several->slots);
  throw Error(ErrorCode::usage, "--slurm",
              "srun starts it " + n + " times on " + several->name + ", and it starts a node's ranks itself",
              "srun --ntasks-per-node=1 troupe launch --slurm --nproc-per-node " + n + " ...");
}

std::string follow_slurm(const SlurmAllocation& allocation, std::optional<int> nproc, LauncherOptions& options,
                         std::chrono::system_clock::time_point now) {
  using namespace std::chrono;
  if (allocation.end_time && options.time_limit == 0ms) {
    const auto left = sys_seconds(seconds(*allocation.end_time)) - now;
    options.time_limit = std::max(1ms, duration_cast<milliseconds>(left));
  }
  const auto& own = allocation.hosts[static_cast<std::size_t>(allocation.node)];
  if (allocation.rank >= 0) {
    options.nnodes = static_cast<int>(allocation.hosts.size());
    options.node_rank = allocation.node;
    options.master_addr = allocation.hosts[0].address;
    options.step = allocation.step;
  } else {
    options.hosts = allocation.hosts;
    if (nproc) {
      for (auto& host : options.hosts) host.slots = *nproc;
    }
  }
  const int ranks = nproc.value_or(allocation.rank >= 0 ? options.nproc : own.slots);
  const bool cpus = allocation.counts_cpus && !nproc;
  if (nproc || allocation.gpus == 0 || (cpus ? ranks == allocation.gpus : ranks >= allocation.gpus)) return {};
  return "note: " + counted(ranks, "rank") + " on " + own.name + ", which has " + counted(allocation.gpus, "GPU") +
         (cpus ? "; the job does not set a number of tasks, so Slurm counts CPUs" : "") +
         "; for one rank on each GPU add --nproc-per-node " + std::to_string(allocation.gpus);
}

std::string launch_plan(const LauncherOptions& options) {
  using namespace std::chrono;
  std::string text = "plan: ";
  if (!options.hosts.empty()) {
    const auto places = assign_ranks(options.hosts);
    text += counted(static_cast<int>(places.size()), "rank") + " on " +
            counted(static_cast<int>(options.hosts.size()), "host") + ", started from here\n";
    int first = 0;
    for (const auto& host : options.hosts) {
      text += "  " + host.name + ": " + ranks_from(first, host.slots) +
              (is_this_machine(host) ? ", on this machine\n" : ", over ssh\n");
      first += host.slots;
    }
  } else if (options.nnodes > 0) {
    text += "node " + std::to_string(options.node_rank) + " of " + std::to_string(options.nnodes) + " starts " +
            ranks_from(options.node_rank * options.nproc, options.nproc) + " of " +
            std::to_string(options.nnodes * options.nproc) + "; the same command runs on each node\n" + "  node 0 is " +
            options.master_addr + ", port " + std::to_string(options.master_port) + "\n";
  } else {
    text += counted(options.nproc, "rank") + " on this machine\n";
  }
  if (options.time_limit > 0ms)
    text += "  asked to stop after " +
            std::to_string(duration_cast<seconds>(time_to_stop(options.time_limit)).count()) + " s\n";
  if (options.spares > 0) text += "  " + counted(options.spares, "spare") + ", the last hosts first\n";
  return text;
}

}  // namespace troupe
