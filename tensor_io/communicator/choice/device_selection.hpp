#pragma once
#include <c10/core/Device.h>

#include <string>

#include "tensor_io/communicator/choice/communicator_settings.hpp"

namespace troupe {

/// What there is: the build's and the machine's part of the choice.
struct DeviceFacts {
  bool has_cuda = false;  ///< built with CUDA
  int count = 0;          ///< devices that this process may use
  std::string problem;    ///< why there is none
};

/// Of this program on this machine. The first call asks the driver, where there may be one.
DeviceFacts device_facts();

/// Where a rank stands on its host.
struct DevicePlace {
  int local_rank = 0;
  int local_world_size = 1;
  bool shares_process = false;  ///< ranks as threads of one process
};

/// The device of a rank: `cpu`, `cuda` (the one with its local rank's number), `cuda:N` (that one), or `auto`: cuda
/// where there is a device for every rank of the host, the CPU in a build without CUDA and where there is none. Pure.
///
/// Throws Error(usage) for another word, a device that is not there, and more ranks than devices unless `share_device`
/// says that they may share, or each process sees one alone (NCCL refuses two ranks on it); Error(unavailable) where
/// cuda is asked for and the build or the machine has none.
c10::Device choose_device(const CommunicatorSettings& settings, const DeviceFacts& facts, const DevicePlace& place);

}  // namespace troupe
