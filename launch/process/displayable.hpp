#pragma once
#include <string>
#include <string_view>

namespace troupe {

/// `text` for an error message on a terminal: all but printable ASCII as \xNN, and at most `most` characters of
/// it.
inline std::string displayable(std::string_view text, std::size_t most = 60) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown;
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      shown += "\\x";
      shown += kDigits[byte >> 4];
      shown += kDigits[byte & 15];
    }
  }
  if (text.size() > most) shown += "... (" + std::to_string(text.size()) + " characters)";
  return shown;
}

}  // namespace troupe
