#pragma once
#include <c10/core/Device.h>

#include "launch/config/config.hpp"

namespace troupe {

/// What does not work on a GPU yet is refused by name, before anything is built: its code walks the host's memory, or
/// its times are the host's. Throws Error(usage).
void check_device_settings(const Config& config, c10::Device device);

}  // namespace troupe
