#pragma once
#include <c10/core/Device.h>

#include <string>

#include "launch/config/config.hpp"
#include "launch/hosts/near_cpus.hpp"

namespace troupe {

/// With `bind_cpus = node` the calling thread, and all that it starts later, run on the CPUs near `device`; so before
/// the process has other threads. Prints one line: on which CPUs, or as a warning why the process is not bound. Returns
/// how many CPUs it is bound to; 0: none in particular. Throws Error(usage) if `device` is the CPU, or if ranks share
/// the process. `devices`: as for near_cpus.
int bind_to_device(const Config& config, c10::Device device, const std::string& devices = kPciDevices);

/// Whether spans become ranges of NVTX. `injected`: the value of NVTX_INJECTION64_PATH, by which profilers inject
/// themselves; nullptr: it is not set. Throws Error(unavailable) if they are to, and the build has no NVTX.
bool wants_ranges(const std::string& nvtx, const char* injected, bool has_nvtx);

/// LibTorch's threads and switches for GPUs, and NVTX's ranges. `shares_machine`: there are other ranks, maybe on this
/// host. `bound_to`: as bind_to_device returned it. Before the process has ranks.
void apply_process_settings(const Config& config, bool shares_machine, int bound_to);

}  // namespace troupe
