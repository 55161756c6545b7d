#pragma once
#include <c10/core/Device.h>

#include "launch/config/config.hpp"

namespace troupe {

/// Refuses by name, before anything is built, settings that do not go together on a GPU. Throws Error(usage).
void check_device_settings(const Config& config, c10::Device device);

}  // namespace troupe
