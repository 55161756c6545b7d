#pragma once
#include <cstdarg>
#include <cstdio>
#include <string>

namespace troupe {

/// The output of printf, at most 511 characters.
[[gnu::format(printf, 1, 2)]] inline std::string formatted(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace troupe
