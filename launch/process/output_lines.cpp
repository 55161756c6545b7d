#include "launch/process/output_lines.hpp"

#include <unistd.h>

#include <cerrno>

namespace troupe {

void OutputLines::feed(std::string_view bytes, const Line& line) {
  constexpr std::size_t kLongest = 1 << 16;
  for (const char c : bytes) {
    if (c == '\n' || c == '\r') {
      if (c == '\n' || !rest_.empty()) line(rest_, c == '\r');
      rest_.clear();
      continue;
    }
    rest_.push_back(c);
    if (rest_.size() >= kLongest) {
      line(rest_, false);
      rest_.clear();
    }
  }
}

void OutputLines::finish(const Line& line) {
  if (!rest_.empty()) line(rest_, false);
  rest_.clear();
}

bool OutputLines::drain(int fd, const Line& line) {
  char block[1 << 14];
  for (;;) {
    const auto n = ::read(fd, block, sizeof block);
    if (n > 0) {
      feed({block, static_cast<std::size_t>(n)}, line);
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      return true;
    } else {
      finish(line);
      return false;
    }
  }
}

}  // namespace troupe
