#include "tensor_io/memory/failure_report.hpp"

#include <c10/util/Exception.h>

#include <utility>

#include "tensor_io/device/device_stream.hpp"
#include "tensor_io/memory/memory_shortage.hpp"

namespace troupe {
namespace {

ErrorReport lost_device(const std::string& what) {
  return {.code = ErrorCode::device_lost,
          .cause = "the device has failed: " + what,
          .remedy =
              "look for the device in nvidia-smi and dmesg (Xid); a fault in a kernel, such as an index out of "
              "range, happens again: CUDA_LAUNCH_BLOCKING=1 shows which kernel it was"};
}

}  // namespace

ErrorReport failure_report(const std::exception& error, c10::Device device, ErrorReport otherwise) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return ours->report();
  if (const auto* shortage = dynamic_cast<const c10::OutOfMemoryError*>(&error))
    return out_of_memory(*shortage, device);
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string what = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  if (has_failed(device)) return lost_device(what);
  otherwise.cause = what;
  return otherwise;
}

}  // namespace troupe
