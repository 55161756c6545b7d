#include "launch/process/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace troupe {

bool shows_bars(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) != 0 && term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

std::size_t terminal_columns(int fd) {
  winsize window{};
  if (::ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int told = columns == nullptr ? 0 : std::atoi(columns);
  return told > 20 ? static_cast<std::size_t>(told) : 80;
}

}  // namespace troupe
