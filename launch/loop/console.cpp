#include "launch/loop/console.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "launch/process/formatted.hpp"
#include "launch/process/terminal.hpp"

namespace troupe {
namespace {

std::string loss_of(const StepWindow& window) { return window.samples > 0 ? loss_text(window.loss()) : "-"; }

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

// Of numbers up to `most`, so that what stands behind one stays in its place.
std::string aligned(std::int64_t number, std::int64_t most) {
  return formatted("%*lld", static_cast<int>(std::to_string(most).size()), static_cast<long long>(number));
}

struct Piece {
  std::string text;
  int worth;  // those of the least go first where there is no room
};

std::size_t length_of(const std::vector<Piece>& pieces) {
  std::size_t length = 0;
  for (const auto& piece : pieces) length += piece.text.size();
  return length;
}

}  // namespace

std::string loss_text(double loss) {
  const double size = std::abs(loss);
  if (!std::isfinite(loss) || size >= 1e6 || size < 0.1) return formatted("%.4g", loss);
  return formatted("%.*f", size >= 100 ? 1 : size >= 10 ? 3 : 4, loss);
}

std::string rate_text(double rate) {
  const double size = std::abs(rate);
  return size >= 9.95 ? formatted("%.*f", size >= 99.95 ? 0 : 1, rate) : formatted("%.3g", rate);
}

std::string train_line(const MetricsReport& report) {
  const auto& w = report.window;
  std::string line = formatted("epoch %lld/%lld  step %lld/%lld  loss %s", static_cast<long long>(report.epoch) + 1,
                               static_cast<long long>(report.epochs), static_cast<long long>(report.step),
                               static_cast<long long>(report.total_steps), loss_of(w).c_str());
  if (w.last_norm != 0) line += formatted("  grad_norm %.4g", w.last_norm);
  if (report.max_resident_gib > 0) line += formatted("  memory %.2fGiB", report.max_resident_gib);
  if (report.max_active_gib > 0) line += formatted("  device %.2fGiB", report.max_active_gib);
  line += formatted("  %s %s  %s steps/s  exposed %.1f%%  data %.1f%%  lr %.3g", rate_text(throughput(report)).c_str(),
                    unit(report), rate_text(w.steps_per_second()).c_str(), 100 * w.exposed_share(),
                    100 * w.data_share(), w.last_lr);
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
  const auto of = [](std::int64_t n, std::int64_t all) { return aligned(n, all) + "/" + std::to_string(all); };
  std::vector<Piece> pieces{{formatted(" %3.0f%%", 100 * share), 9},
                            {"  epoch " + of(report.epoch + 1, report.epochs), 3},
                            {"  step " + of(report.step, report.total_steps), 8},
                            {time_left(report.seconds_left), 7},
                            {formatted("  loss %-7s", loss_of(w).c_str()), 6},
                            {w.correct > 0 ? formatted("  acc %5.2f%%", 100 * w.accuracy()) : "", 5},
                            {formatted("  %5s ", rate_text(throughput(report)).c_str()) + unit(report), 4},
                            {formatted("  %5s ms", rate_text(w.mean_step_ms()).c_str()), 2},
                            {formatted("  exposed %4.1f%%", 100 * w.exposed_share()), 1}};
  constexpr std::size_t kLeast = 4, kMost = 20, kBrackets = 2;  // of the bar
  // A bar is worth more than an epoch, and less than a rate.
  for (int worth = 1; worth < 9; ++worth) {
    const auto wanted = length_of(pieces) + (worth <= 3 ? kLeast + kBrackets : 0);
    if (wanted <= columns) break;
    std::erase_if(pieces, [worth](const Piece& piece) { return piece.worth == worth; });
  }
  std::string text;
  for (const auto& piece : pieces) text += piece.text;
  if (text.size() + kLeast + kBrackets > columns) return text.substr(0, columns);
  const auto room = std::min(kMost, columns - text.size() - kBrackets);
  const auto filled = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(room));
  return "[" + std::string(filled, '#') + std::string(room - filled, '.') + "]" + text;
}

std::string validation_line(const ValidationReport& report) {
  auto line = formatted("epoch %lld  held-out loss %s", static_cast<long long>(report.epoch) + 1,
                        loss_text(report.loss).c_str());
  if (report.accuracy > 0)
    line += formatted("  accuracy %.2f%%", 100 * report.accuracy);  // else the program counts none
  line += formatted(" of %.0f", report.samples);
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
  std::printf("%s%s\r", terminal_ ? kClearLine : "", tinted(bar, 1).c_str());
  std::fflush(stdout);
  shown_ = true;
}

void Console::line(const std::string& text) {
  if (taker_) return (*taker_)(text);
  const std::scoped_lock lock(mutex_);
  clear();
  std::printf("%s\n", tinted(text, 1).c_str());
  std::fflush(stdout);
}

void Console::warn(const std::string& text) {
  if (taker_) return (*taker_)(text);
  const std::scoped_lock lock(mutex_);
  clear();
  std::fprintf(stderr, "%s\n", tinted(text, 2).c_str());
}

void Console::clear() {
  if (shown_ && terminal_) {
    std::fputs(kClearLine, stdout);
    std::fflush(stdout);
  }
  shown_ = false;
}

}  // namespace troupe
