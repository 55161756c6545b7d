#include "launch/output_lines.hpp"

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

}  // namespace troupe
