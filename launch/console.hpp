#pragma once
#include <string>

#include "actors/metrics.hpp"

namespace troupe {

/// One line about the steps of a window: `epoch 2/8  step 45/176  loss 0.4312  acc 87.50%  12.3 steps/s  787 samples/s  exposed 4.1%  data
/// 0.2%`.
std::string train_line(const MetricsReport& report);
/// The same as a bar of at most `columns` ASCII characters, with the time that is left.
std::string progress_bar(const MetricsReport& report, std::size_t columns);
std::string validation_line(const ValidationReport& report);

/// What rank 0 prints: log lines, and on a terminal a bar between them, at most ten times a second. One thread at a time.
class Console {
 public:
  /// The bar is on if standard output is a terminal, or the launcher says that its own is (TROUPE_PROGRESS=bar).
  Console();
  bool has_bar() const noexcept { return bar_; }
  void show(const MetricsReport& report);
  void show(const ValidationReport& report);
  void line(const std::string& text);

 private:
  bool bar_ = false;
  bool shown_ = false;
};

}  // namespace troupe
