#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// Which strategy, and what the data-parallel ones do.
struct StrategyOptions {
  std::string strategy = "ddp";
  double bucket_cap_mb = 25;             ///< MiB of gradients in a bucket
  double first_bucket_mb = 1;            ///< MiB in the bucket that fills first
  bool broadcast_buffers = true;         ///< rank 0's buffers (BatchNorm's running statistics) to all before each step
  bool static_graph = false;             ///< promise that every step uses the same parameters in the same order
  bool sync_batchnorm = false;           ///< BatchNorm statistics over all ranks
  std::string comm_hook = "none";        ///< none, fp16, bf16, powersgd, or the name of a registered hook
  std::int64_t powersgd_rank = 2;        ///< columns of PowerSGD's factors
  std::int64_t powersgd_start_step = 0;  ///< steps before this one send gradients whole
};

}  // namespace troupe
