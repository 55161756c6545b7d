#include "launch/loop/console.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "launch/process/formatted.hpp"
#include "launch/process/terminal.hpp"

namespace troupe {
namespace {

std::string loss_of(const StepWindow& window) { return window.samples > 0 ? formatted("%.4f", window.loss()) : "-"; }

double throughput(const MetricsReport& report) {
  return report.window.samples_per_second() * static_cast<double>(std::max<std::int64_t>(1, report.tokens_per_sample));
}
const char* unit(const MetricsReport& report) { return report.tokens_per_sample > 0 ? "tokens/s" : "samples/s"; }

std::string time_left(double seconds) {
  if (seconds < 0) return {};
  const auto all = std::llround(seconds);
  if (all >= 3600) return formatted("  %lld:%02lld:%02lld left", all / 3600, all / 60 % 60, all % 60);
  return formatted("  %lld:%02lld left", all / 60, all % 60);
}

bool launcher_wants_bar() {
  const char* told = std::getenv("TROUPE_PROGRESS");
  return told != nullptr && std::string_view(told) == "bar";
}

}  // namespace

std::string train_line(const MetricsReport& report) {
  const auto& w = report.window;
  std::string line = formatted("epoch %lld/%lld  step %lld/%lld  loss %s", static_cast<long long>(report.epoch) + 1,
                               static_cast<long long>(report.epochs), static_cast<long long>(report.step),
                               static_cast<long long>(report.total_steps), loss_of(w).c_str());
  if (w.last_norm != 0) line += formatted("  grad_norm %.4g", w.last_norm);
  if (report.max_resident_gib > 0) line += formatted("  memory %.2fGiB", report.max_resident_gib);
  line += formatted("  %.0f %s  %.1f steps/s  exposed %.1f%%  data %.1f%%  lr %.3g", throughput(report), unit(report),
                    w.steps_per_second(), 100 * w.exposed_share(), 100 * w.data_share(), w.last_lr);
  if (w.correct > 0) line += formatted("  acc %.2f%%", 100 * w.accuracy());
  if (w.last_loss_scale != 1) line += formatted("  loss scale %.3g", w.last_loss_scale);
  if (w.skipped > 0) line += formatted("  skipped %lld", static_cast<long long>(w.skipped));
  for (const auto& slow : w.stragglers)
    line += formatted("  slow: rank %d (%s %.1fx)", slow.rank, slow.section.c_str(), slow.ratio);
  return line;
}

std::string progress_bar(const MetricsReport& report, std::size_t columns) {
  const auto& w = report.window;
  const double share =
      report.total_steps > 0 ? static_cast<double>(report.step) / static_cast<double>(report.total_steps) : 0;
  const auto text =
      formatted(" %3.0f%%  epoch %lld  step %lld/%lld  loss %s  %.0f %s  %.1f ms  exposed %.1f%%%s", 100 * share,
                static_cast<long long>(report.epoch) + 1, static_cast<long long>(report.step),
                static_cast<long long>(report.total_steps), loss_of(w).c_str(), throughput(report), unit(report),
                w.mean_step_ms(), 100 * w.exposed_share(), time_left(report.seconds_left).c_str());
  const std::size_t room = columns > text.size() + 12 ? std::min<std::size_t>(20, columns - text.size() - 3) : 0;
  if (room == 0) return text.substr(0, columns);
  const auto filled = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(room));
  return "[" + std::string(filled, '#') + std::string(room - filled, '.') + "]" + text;
}

std::string validation_line(const ValidationReport& report) {
  std::string line =
      formatted("epoch %lld  held-out loss %.4f  accuracy %.2f%% of %.0f", static_cast<long long>(report.epoch) + 1,
                report.loss, 100 * report.accuracy, report.samples);
  if (report.best) line += "  (best so far)";
  return line;
}

Console::Console(bool wanted)
    : taker_(line_taker()),
      terminal_(!taker_ && shows_bars(1) && !launcher_wants_bar()),
      bar_(wanted && !taker_ && (terminal_ || launcher_wants_bar())) {}

void Console::show(const MetricsReport& report) {
  if (report.log) line(train_line(report));
  if (!bar_) return;
  const std::scoped_lock lock(mutex_);
  const auto bar = progress_bar(report, terminal_columns(1) - 1);  // the last column would scroll
  std::printf("%s%s\r", terminal_ ? kClearLine : "", bar.c_str());
  std::fflush(stdout);
  shown_ = true;
}

void Console::line(const std::string& text) {
  if (taker_) return (*taker_)(text);
  const std::scoped_lock lock(mutex_);
  clear();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void Console::warn(const std::string& text) {
  if (taker_) return (*taker_)(text);
  const std::scoped_lock lock(mutex_);
  clear();
  std::fprintf(stderr, "%s\n", text.c_str());
}

void Console::clear() {
  if (shown_ && terminal_) {
    std::fputs(kClearLine, stdout);
    std::fflush(stdout);
  }
  shown_ = false;
}

}  // namespace troupe
