#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/compute/step_losses.hpp"
#include "tensor_io/device/device_stream.hpp"

namespace troupe {

/// The result of a step on a device, on its way to the host: losses, gradient norm and whether all is finite, in one
/// copy. Compute's thread.
struct DeviceNumbers {
  std::int64_t step = -1;
  std::vector<DeviceLoss> losses;
  double samples = 0, correct = 0;
  at::Tensor values;  // (n,) f64, pinned: losses, sum of squares and elements that are not finite, whether the device
                      // skipped the step
  std::optional<DeviceEvent> over;  // they are there
  bool has_totals = false;
  bool not_finite = false, skipped = false;  // once read

  /// The copy is on its way when this returns. `totals`: (2,) f64, `skip`: () of the step's decision; undefined: there
  /// is none.
  void send(c10::Device device, const at::Tensor& totals, const at::Tensor& skip);
  /// After the wait. Counts the losses; returns the gradient's norm, with the loss scale in it.
  double take(StepLosses& count);
};

}  // namespace troupe
