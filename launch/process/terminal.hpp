#pragma once
#include <cstddef>

namespace troupe {

/// To the line's beginning, and nothing left of it.
inline constexpr const char* kClearLine = "\r\x1b[K";

/// Whether a line on `fd` can be overwritten: it is a terminal, and TERM does not call it dumb.
bool shows_bars(int fd);
/// Its width now; where it is no terminal COLUMNS, else 80.
std::size_t terminal_columns(int fd);

}  // namespace troupe
