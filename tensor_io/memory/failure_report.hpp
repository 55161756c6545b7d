#pragma once
#include <c10/core/Device.h>

#include <exception>

#include "tensor_io/base/error.hpp"

namespace troupe {

/// What `error` comes to on a thread that works with `device`: the report that it carries, memory that ran out, a
/// device that has failed, or `otherwise`, whose cause becomes the error's text. In the error's handler.
ErrorReport failure_report(const std::exception& error, c10::Device device, ErrorReport otherwise);

}  // namespace troupe
