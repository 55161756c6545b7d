#pragma once

namespace troupe {

/// bf16 autocast on the CPU while it lives, on its thread; nothing where `enabled` is false. Parameters stay f32, as do their gradients.
class AutocastGuard {
 public:
  explicit AutocastGuard(bool enabled);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  bool enabled_, before_;
};

}  // namespace troupe
