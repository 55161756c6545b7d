#pragma once
#include <cstddef>
#include <string>

namespace troupe::testing {

/// How often `part` is in the text.
inline std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace troupe::testing
