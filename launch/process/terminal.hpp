#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

/// To the line's beginning, and nothing left of it.
inline constexpr const char* kClearLine = "\r\x1b[K";

/// Whether a line on `fd` can be overwritten: it is a terminal, and TERM does not call it dumb.
bool shows_bars(int fd);
/// Whether text on `fd` may be coloured: as above, and NO_COLOR is not set (https://no-color.org).
bool shows_colours(int fd);
/// A line for a terminal: a progress bar's filled part, a rank's label, `warning:` and `error:` in colours. Pure.
std::string with_colours(std::string_view line);
/// The same if `fd` shows colours, else the line as it is.
std::string tinted(std::string_view line, int fd);
/// Its width now; if it is no terminal COLUMNS, else 80.
std::size_t terminal_columns(int fd);
/// That of a page of help: the terminal's, at most 100; 80 if it is no terminal.
std::size_t help_columns(int fd);
/// A page of help on standard output, its lines wrapped there.
void print_help(const char* page);

}  // namespace troupe
