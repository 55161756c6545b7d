#include "launch/process/rank_lines.hpp"

#include <cstdio>
#include <sstream>
#include <utility>

namespace troupe {
namespace {

thread_local std::shared_ptr<LineTaker> taker_of_thread;

}  // namespace

const std::shared_ptr<LineTaker>& line_taker() noexcept { return taker_of_thread; }

void set_line_taker(std::shared_ptr<LineTaker> taker) noexcept { taker_of_thread = std::move(taker); }

void print_line(const std::string& line) { print_text(line + '\n'); }

void print_text(const std::string& text) {
  if (!taker_of_thread) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
    return;
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) (*taker_of_thread)(line);
}

void print_error_line(const std::string& line) { error_line_printer()(line); }

std::function<void(const std::string&)> error_line_printer() {
  return [taker = taker_of_thread](const std::string& line) {
    if (taker) return (*taker)(line);
    std::fprintf(stderr, "%s\n", line.c_str());
  };
}

}  // namespace troupe
