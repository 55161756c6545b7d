#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>

#include "actors/metrics/metrics.hpp"
#include "launch/process/rank_lines.hpp"

namespace troupe {

/// With at least four significant digits, for any size: 0.4312, 123.4, 1.2e-05.
std::string loss_text(double loss);
/// Of something per second: 787, 12.3, 0.05.
std::string rate_text(double rate);

/// One line about the steps of a window, keys in the order of torchtitan's: `epoch 2/8  step 45/176  loss 0.4312
/// grad_norm 0.98  memory 0.41GiB  787 samples/s  12.3 steps/s  exposed 4.1%  data 0.2%  lr 0.05  acc 87.50%`.
std::string train_line(const MetricsReport& report);
/// The same as a bar of at most `columns` ASCII characters: step of all steps, the time that is left, loss, accuracy
/// and rate, and more if there is room.
std::string progress_bar(const MetricsReport& report, std::size_t columns);
std::string validation_line(const ValidationReport& report);

/// Rank 0's output: log lines, and on a terminal a bar below them. Any thread.
///
/// The owner of the terminal draws the bar: this process, or a launcher, which reads it as a line that ends in a
/// carriage return, and adds the colours. Without a bar all characters are text.
class Console {
 public:
  /// The bar is on if it is `wanted` and standard output is a terminal, or the launcher's is
  /// (TROUPE_PROGRESS=bar).
  explicit Console(bool wanted = true);
  bool has_bar() const noexcept { return bar_; }
  void show(const MetricsReport& report);
  void show(const ValidationReport& report) { line(validation_line(report)); }
  void line(const std::string& text);
  void warn(const std::string& text);  ///< to standard error

 private:
  void clear();

  const std::shared_ptr<LineTaker> taker_;  // of the rank that made it
  const bool terminal_;                     // ours
  const bool bar_;
  std::mutex mutex_;
  bool shown_ = false;
};

}  // namespace troupe
