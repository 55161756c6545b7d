#include "launch/config/device_settings.hpp"

namespace troupe {
namespace {

[[noreturn]] void refuse(const std::string& field, const std::string& value, c10::Device device,
                         const std::string& instead) {
  throw Error(ErrorCode::usage, field,
              "'" + value + "' works on the CPU only so far, and this rank trains on " + device.str(),
              instead + ", or use --device cpu");
}

}  // namespace

void check_device_settings(const Config& config, c10::Device device) {
  if (device.is_cpu()) return;
  if (config.fsdp_cpu_offload && (config.strategy == "pipeline" || config.strategy == "tensor_parallel")) {
    throw Error(ErrorCode::usage, "fsdp_cpu_offload", "strategy " + config.strategy + " keeps its shards on the device",
                "leave it out, or use strategy fsdp");
  }
  if (config.balance == "speed")
    refuse("balance", "speed", device, "use weights by rank");  // the host's times are not the device's
  if (config.cuda_graphs && config.sync_batchnorm) {
    throw Error(ErrorCode::usage, "cuda_graphs", "sync_batchnorm waits for other ranks within forward and backward",
                "leave one of them out");
  }
  if (config.deferred_init) refuse("deferred_init", "true", device, "leave it out");
}

}  // namespace troupe
