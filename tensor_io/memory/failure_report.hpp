#pragma once
#include <c10/core/Device.h>

#include <exception>

#include "tensor_io/base/error.hpp"

namespace troupe {

/// The report for `error` on a thread that works with `device`: the error's own, memory that ran out, or a device that
/// has failed. For any other error it is `otherwise`, with the error's text as cause. In the error's handler.
ErrorReport failure_report(const std::exception& error, c10::Device device, ErrorReport otherwise);

}  // namespace troupe
