#pragma once
// Autocast of the reference. Includes nothing of Troupe.
#include <ATen/autocast_mode.h>

#include <string>

namespace troupe::differential {

/// LibTorch's own autocast on the CPU.
class Autocast {
 public:
  explicit Autocast(const std::string& type) : on_(type != "none") {
    if (!on_) return;
    at::autocast::set_autocast_dtype(at::kCPU, type == "fp16" ? at::kHalf : at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
};

}  // namespace troupe::differential
