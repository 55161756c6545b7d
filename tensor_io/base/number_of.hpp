#pragma once
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace troupe {

/// The number that `text` is as a whole, as std::from_chars reads one; nothing if a part is no number, or out of range.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace troupe
