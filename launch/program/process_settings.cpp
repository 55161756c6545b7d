#include "launch/program/process_settings.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <cstdlib>

#include "launch/process/rank_lines.hpp"
#include "tensor_io/device/accelerator.hpp"

namespace troupe {

int bind_to_device(const Config& config, c10::Device device, const std::string& devices) {
  if (config.bind_cpus == "off") return 0;
  if (config.ranks > 1) {
    throw Error(ErrorCode::usage, "bind_cpus", "it binds a process, and the ranks of --ranks share one",
                "leave it off, or start the ranks with troupe launch");
  }
  auto* const gpus = accelerator();
  if (device.is_cpu() || gpus == nullptr) {
    throw Error(ErrorCode::usage, "bind_cpus",
                "'node' means the CPUs near a rank's GPU, and this rank trains on the CPU",
                "leave it off, or use --device cuda");
  }
  const auto address = gpus->pci_address(device.index());
  const auto near = near_cpus(address, allowed_cpus(), devices);
  if (!near.problem.empty()) {
    print_error_line("warning: bind_cpus: " + near.problem + "; the process is not bound");
    return 0;
  }
  bind_thread(near.cpus);
  print_error_line("bind_cpus: CPUs " + cpu_list_text(near.cpus) + ", near " + device.str() + " (" + address + ")");
  return static_cast<int>(near.cpus.size());
}

bool wants_ranges(const std::string& nvtx, const char* injected, bool has_nvtx) {
  if (nvtx == "on" && !has_nvtx) {
    throw Error(ErrorCode::unavailable, "nvtx", "'on' was asked for, but this program was built without CUDA",
                "build with ./dev build cuda, or leave it out");
  }
  const bool is_injected = injected != nullptr && *injected != '\0';
  return has_nvtx && (nvtx == "on" || (nvtx == "auto" && is_injected));
}

void apply_process_settings(const Config& config, bool shares_machine, int bound_to) {
  if (config.threads > 0) {
    at::set_num_threads(static_cast<int>(config.threads));
  } else if (shares_machine) {
    at::set_num_threads(1);
  } else if (bound_to > 0 && at::get_num_threads() > bound_to) {  // it counted the CPUs before
    at::set_num_threads(bound_to);
  }
  if (config.tf32) at::globalContext().setAllowTF32CuBLAS(true);  // convolutions use it by LibTorch's default
  if (config.cudnn_benchmark) at::globalContext().setBenchmarkCuDNN(true);
  auto* const gpus = accelerator();
  const bool ranges = wants_ranges(config.nvtx, std::getenv("NVTX_INJECTION64_PATH"), gpus != nullptr);
  set_span_ranges(ranges ? &gpus->ranges() : nullptr);
}

}  // namespace troupe
