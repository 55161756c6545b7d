#include "launch/console.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace troupe {
namespace {

template <class... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, arguments...);
  return text;
}

std::string loss_of(const StepWindow& window) { return window.samples > 0 ? format("%.4f", window.loss()) : "-"; }

}  // namespace

std::string train_line(const MetricsReport& report) {
  const auto& w = report.window;
  std::string line =
      format("epoch %lld/%lld  step %lld/%lld  loss %s", static_cast<long long>(report.epoch) + 1, static_cast<long long>(report.epochs),
             static_cast<long long>(report.step), static_cast<long long>(report.total_steps), loss_of(w).c_str());
  if (w.correct > 0) line += format("  acc %.2f%%", 100 * w.accuracy());
  line += format("  lr %.3g  %.1f steps/s  %.0f %s  exposed %.1f%%  data %.1f%%", w.last_lr, w.steps_per_second(),
                 w.samples_per_second() * static_cast<double>(std::max<std::int64_t>(1, report.tokens_per_sample)),
                 report.tokens_per_sample > 0 ? "tokens/s" : "samples/s", 100 * w.exposed_share(), 100 * w.data_share());
  if (w.last_loss_scale != 1) line += format("  loss scale %.3g", w.last_loss_scale);
  if (w.skipped > 0) line += format("  skipped %lld", static_cast<long long>(w.skipped));
  for (const auto& slow : w.stragglers) line += format("  slow: rank %d (%s %.1fx)", slow.rank, slow.section.c_str(), slow.ratio);
  return line;
}

std::string progress_bar(const MetricsReport& report, std::size_t columns) {
  const auto& w = report.window;
  const double share = report.total_steps > 0 ? static_cast<double>(report.step) / static_cast<double>(report.total_steps) : 0;
  const double left = w.steps_per_second() > 0 ? static_cast<double>(report.total_steps - report.step) / w.steps_per_second() : 0;
  const auto text = format(" %3.0f%%  epoch %lld  step %lld/%lld  loss %s  %.0f samples/s  %.1f ms  exposed %.1f%%  %d:%02d left",
                           100 * share, static_cast<long long>(report.epoch) + 1, static_cast<long long>(report.step),
                           static_cast<long long>(report.total_steps), loss_of(w).c_str(), w.samples_per_second(), w.mean_step_ms(),
                           100 * w.exposed_share(), static_cast<int>(left) / 60, static_cast<int>(left) % 60);
  const std::size_t room = columns > text.size() + 12 ? std::min<std::size_t>(20, columns - text.size() - 3) : 0;
  if (room == 0) return text.substr(0, columns);
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(room));
  return "[" + std::string(filled, '#') + std::string(room - filled, '.') + "]" + text;
}

std::string validation_line(const ValidationReport& report) {
  std::string line = format("epoch %lld  held-out loss %.4f  accuracy %.2f%% of %.0f", static_cast<long long>(report.epoch) + 1,
                            report.loss, 100 * report.accuracy, report.samples);
  if (report.best) line += "  (best so far)";
  return line;
}

Console::Console() {
  const char* told = std::getenv("TROUPE_PROGRESS");
  bar_ = isatty(1) != 0 || (told != nullptr && std::string_view(told) == "bar");
}

void Console::show(const MetricsReport& report) {
  if (report.log) line(train_line(report));
  if (bar_) {
    std::size_t columns = 100;
    if (const char* width = std::getenv("COLUMNS"); width != nullptr && std::atoi(width) > 20)
      columns = static_cast<std::size_t>(std::atoi(width));
    std::printf("%s\r", progress_bar(report, columns).c_str());
    std::fflush(stdout);
    shown_ = true;
  }
}

void Console::show(const ValidationReport& report) { line(validation_line(report)); }

void Console::line(const std::string& text) {
  if (shown_ && isatty(1) != 0) std::fputs("\x1b[K", stdout);
  shown_ = false;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace troupe
