#include "launch/config/device_settings.hpp"

namespace troupe {

void check_device_settings(const Config& config, c10::Device device) {
  if (device.is_cpu()) return;
  if (config.fsdp_cpu_offload && (config.strategy == "pipeline" || config.strategy == "tensor_parallel")) {
    throw Error(ErrorCode::usage, "fsdp_cpu_offload", "strategy " + config.strategy + " keeps its shards on the device",
                "leave it out, or use strategy fsdp");
  }
  if (config.cuda_graphs && config.sync_batchnorm) {
    throw Error(ErrorCode::usage, "cuda_graphs", "sync_batchnorm waits for other ranks within forward and backward",
                "leave one of them out");
  }
}

}  // namespace troupe
