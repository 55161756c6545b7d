#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

namespace troupe {

struct Config;

/// The facts that decide whether a run is slower here than necessary.
struct SlowFacts {
  bool autocast = false;       ///< use_amp, on the CPU
  std::string autocast_dtype;  ///< bf16, fp16
  bool computes_bf16 = true;   ///< this CPU has instructions for it
  bool computes_fp16 = true;
  int ranks_here = 1;  ///< processes of the job on this host
  int threads = 1;     ///< of each of them, for LibTorch
  int cores = 1;       ///< that this process may use
  bool debug_build = false;
};

/// A line for each, with a remedy. Pure.
std::vector<std::string> slow_lines(const SlowFacts& facts);

/// Whether a CPU has instructions for these numbers, by the flags in /proc/cpuinfo. Pure.
bool computes_bf16(std::string_view cpuinfo);
bool computes_fp16(std::string_view cpuinfo);

/// The facts of this process. `ranks_here`: ranks that are processes on its host.
SlowFacts slow_facts(const Config& config, c10::Device device, int ranks_here);

}  // namespace troupe
