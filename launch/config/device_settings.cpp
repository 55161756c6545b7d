#include "launch/config/device_settings.hpp"

#include <array>

namespace troupe {
namespace {

constexpr std::array<std::string_view, 3> kHostStrategies = {"parameter_server", "pipeline", "tensor_parallel"};

[[noreturn]] void refuse(const std::string& field, const std::string& value, c10::Device device,
                         const std::string& instead) {
  throw Error(ErrorCode::usage, field,
              "'" + value + "' works on the CPU only so far, and this rank trains on " + device.str(),
              instead + ", or use --device cpu");
}

}  // namespace

void check_device_settings(const Config& config, c10::Device device) {
  if (device.is_cpu()) return;
  for (const auto name : kHostStrategies) {
    if (config.strategy == name) refuse("strategy", config.strategy, device, "use ddp");
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
