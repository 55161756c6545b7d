#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

/// `text` in lines of at most `columns` characters, each with its end, cut at spaces; a word that is longer than a line
/// is cut anywhere. It stands in the column `indent`, with `lead` before its first line, or above it if `lead` is too
/// long.
std::string wrapped(const std::string& lead, std::size_t indent, std::string_view text, std::size_t columns);

/// A page of help whose lines are ` flags text`: long ones are wrapped, in the column of their text.
std::string wrapped_page(std::string_view page, std::size_t columns);

}  // namespace troupe
