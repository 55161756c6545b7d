#include "launch/process/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "launch/process/wrapped_text.hpp"

namespace troupe {

bool shows_bars(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) != 0 && term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

bool shows_colours(int fd) {
  const char* refused = std::getenv("NO_COLOR");
  return (refused == nullptr || *refused == '\0') && shows_bars(fd);
}

std::string with_colours(std::string_view line) {
  constexpr std::string_view kPlain = "\x1b[0m", kDim = "\x1b[2m", kRed = "\x1b[31m", kGreen = "\x1b[32m",
                             kYellow = "\x1b[33m";
  std::string text;
  const auto add = [&](std::string_view colour, std::size_t length) {
    text.append(colour).append(line.substr(0, length)).append(kPlain);
    line.remove_prefix(length);
  };
  if (line.starts_with('[') && line.find_first_of("#.") != 1) {
    if (const auto end = line.find("] "); end != std::string_view::npos) add(kDim, end + 1);
  }
  const auto spaces = std::min(line.find_first_not_of(' '), line.size());
  text += line.substr(0, spaces);
  line.remove_prefix(spaces);
  if (line.starts_with("[#")) {
    text += '[';
    line.remove_prefix(1);
    add(kGreen, std::min(line.find_first_not_of('#'), line.size()));
  }
  for (const auto& [word, colour] : {std::pair{std::string_view("warning:"), kYellow}, {"error:", kRed}}) {
    if (line.starts_with(word)) add(colour, word.size());
  }
  return text.append(line);
}

std::string tinted(std::string_view line, int fd) { return shows_colours(fd) ? with_colours(line) : std::string(line); }

std::size_t terminal_columns(int fd) {
  winsize window{};
  if (::ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int told = columns == nullptr ? 0 : std::atoi(columns);
  return told > 20 ? static_cast<std::size_t>(told) : 80;
}

std::size_t help_columns(int fd) {
  constexpr std::size_t kWidest = 100, kElsewhere = 80;
  return ::isatty(fd) != 0 ? std::min(kWidest, terminal_columns(fd)) : kElsewhere;
}

void print_help(const char* page) { std::fputs(wrapped_page(page, help_columns(STDOUT_FILENO)).c_str(), stdout); }

}  // namespace troupe
