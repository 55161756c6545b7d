#pragma once
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

namespace troupe::testing {

/// The most memory that this process has had since this was made, beyond what it had then. Pages that processes share
/// count in full.
class PeakMemory {
 public:
  PeakMemory() {
    std::ofstream refs("/proc/self/clear_refs");
    refs << 5 << std::flush;  // the kernel's mark goes down to what there is now
    before_ = kib("VmRSS");
    known_ = refs && kib("VmHWM") <= before_ + 8192;
  }
  /// Negative where the kernel does not take the mark down: there is nothing to measure by.
  std::int64_t mib() const { return known_ ? (kib("VmHWM") - before_) / 1024 : -1; }

 private:
  static std::int64_t kib(const std::string& field) {
    std::ifstream file("/proc/self/status");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1));
    }
    throw std::runtime_error("/proc/self/status has no " + field);
  }
  std::int64_t before_ = 0;
  bool known_ = false;
};

}  // namespace troupe::testing
