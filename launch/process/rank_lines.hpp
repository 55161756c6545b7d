#pragma once
#include <functional>
#include <memory>
#include <string>

namespace troupe {

/// Takes a rank's lines, instead of standard output and standard error. Any thread of the
/// rank.
using LineTaker = std::function<void(const std::string& line)>;

/// That of the calling thread's rank; nullptr: they are printed. If several ranks share a process, each has its own.
const std::shared_ptr<LineTaker>& line_taker() noexcept;
void set_line_taker(std::shared_ptr<LineTaker> taker) noexcept;

/// A line for the user: to the thread's taker, or standard output or error.
void print_line(const std::string& line);
/// Several lines, each with its end.
void print_text(const std::string& text);
void print_error_line(const std::string& line);
/// The same, for use on another thread later.
std::function<void(const std::string&)> error_line_printer();

}  // namespace troupe
