#pragma once
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace troupe {

/// Autocast to `dtype` (bf16, fp16) on this kind of device while it lives, on its thread; nothing if `enabled` is
/// false. Parameters stay f32, as do their gradients. It goes around forward and loss. It does not go around backward,
/// which follows forward's dtypes. May be nested.
class AutocastGuard {
 public:
  explicit AutocastGuard(bool enabled, c10::ScalarType dtype = c10::ScalarType::BFloat16,
                         c10::DeviceType device = c10::kCPU);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_, before_;
  c10::ScalarType dtype_before_;
};

}  // namespace troupe
