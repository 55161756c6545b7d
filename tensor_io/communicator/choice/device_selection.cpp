#include "tensor_io/communicator/choice/device_selection.hpp"

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"
#include "tensor_io/device/accelerator.hpp"

namespace troupe {
namespace {

constexpr int kMostDevices = 64;

[[noreturn]] void refuse(ErrorCode code, const std::string& cause, const std::string& remedy) {
  throw Error(code, "device", cause, remedy);
}

std::string devices(int count) { return std::to_string(count) + (count == 1 ? " device" : " devices"); }

// The number after `cuda:`; -1 for `cuda` alone.
int index_of(const std::string& device) {
  if (device == "cuda") return -1;
  const auto index = device.starts_with("cuda:") ? number_of<int>(std::string_view(device).substr(5)) : std::nullopt;
  if (!index || *index < 0 || *index >= kMostDevices)
    refuse(ErrorCode::usage, "'" + device + "' is not a device", "use auto, cpu, cuda, or cuda:N");
  return *index;
}

}  // namespace

DeviceFacts device_facts() {
  auto* cuda = accelerator();
  if (cuda == nullptr) return {false, 0, "this program was built without CUDA"};
  const int count = cuda->device_count();
  return {true, count, count > 0 ? std::string() : cuda->problem()};
}

c10::Device choose_device(const CommunicatorSettings& settings, const DeviceFacts& facts, const DevicePlace& place) {
  const auto& wanted = settings.device;
  if (wanted == "cpu") return c10::kCPU;
  const bool automatic = wanted == "auto";
  const int fixed = automatic ? -1 : index_of(wanted);
  if (facts.count == 0) {
    if (automatic) return c10::kCPU;
    refuse(ErrorCode::unavailable, "'" + wanted + "' was asked for, but there is no GPU: " + facts.problem,
           facts.has_cuda ? "look at nvidia-smi, or use --device cpu"
                          : "build with ./dev build cuda, or use --device cpu");
  }
  if (fixed >= facts.count) {
    refuse(ErrorCode::usage,
           "'" + wanted + "' does not exist: this machine has " + devices(facts.count) + ", numbered from 0",
           "use a lower number");
  }
  const bool enough = place.local_world_size == 1 || (fixed < 0 && place.local_world_size <= facts.count);
  if (!enough && place.shares_process) {
    if (automatic) return c10::kCPU;  // a simulated cluster is for tests
    refuse(ErrorCode::usage,
           std::to_string(place.local_world_size) + " ranks of one process would share " + devices(facts.count),
           "use troupe launch, or --device cpu: NCCL needs a process for each rank on a device");
  }
  // A launcher may show each process another device, as Slurm does with --gpus-per-task=1: all have number 0, and
  // NCCL finds out whether they are one.
  const bool shown_one = facts.count == 1;
  if (!enough && !shown_one && !settings.share_device) {
    refuse(ErrorCode::usage,
           std::to_string(place.local_world_size) + " ranks on this host would share " +
               (fixed < 0 ? devices(facts.count) : "one device, " + wanted),
           "start as many ranks as there are devices, or let them share (--share_device), or use --device cpu");
  }
  const int index = fixed >= 0 ? fixed : place.local_rank % facts.count;
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace troupe
