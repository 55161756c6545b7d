#pragma once
#include <c10/core/Device.h>

#include <string>

#include "tensor_io/communicator/choice/communicator_settings.hpp"

namespace troupe {

/// The build's and the machine's part of the choice.
struct DeviceFacts {
  bool has_cuda = false;  ///< built with CUDA
  int count = 0;          ///< devices that this process may use
  std::string problem;    ///< why there is no device
};

/// Of this program on this machine. The first call asks the driver, if there may be one.
DeviceFacts device_facts();

/// A rank's place on its host.
struct DevicePlace {
  int local_rank = 0;
  int local_world_size = 1;
  bool shares_process = false;  ///< ranks as threads of one process
};

/// The device of a rank: `cpu`, `cuda` (the one with its local rank's number), `cuda:N` (that one), or `auto`. `auto`
/// is cuda if there is a device for every rank of the host, the CPU in a build without CUDA or without devices. Pure.
///
/// Throws Error(usage) for another word, and for a missing device. Throws it for more ranks than devices, unless
/// `share_device` allows that or each process sees one alone (NCCL refuses two ranks on it). Throws Error(unavailable)
/// for cuda if the build or the machine has none.
c10::Device choose_device(const CommunicatorSettings& settings, const DeviceFacts& facts, const DevicePlace& place);

}  // namespace troupe
