#include "launch/jobs/job_log.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>

namespace troupe {
namespace {

constexpr std::string_view kEndWords = "troupe: ended with exit code ";
constexpr std::size_t kMostLast = 64 << 10;

}  // namespace

std::string job_log_of(const std::string& folder) { return folder + "/launch.log"; }
std::string end_line(int exit_code) { return std::string(kEndWords) + std::to_string(exit_code); }

JobLog JobLog::last_lines(const std::string& path, int lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto end = file ? static_cast<std::uint64_t>(file.tellg()) : 0;
  const auto begin = end > kMostLast ? end - kMostLast : 0;
  file.seekg(static_cast<std::streamoff>(begin));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  auto at = text.size();
  for (int line = 0; line <= lines && at != std::string::npos && at > 0; ++line) at = text.rfind('\n', at - 1);
  return {path, begin + (at == std::string::npos || at == 0 ? 0 : at + 1)};
}

void JobLog::show_new() {
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(next_));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.empty()) return;
  next_ += text.size();
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  last_ += text;
  if (last_.size() > kMostLast) last_.erase(0, last_.size() - kMostLast);
}

std::optional<int> JobLog::exit_code() const {
  const auto at = last_.rfind(kEndWords);
  if (at == std::string::npos || (at > 0 && last_[at - 1] != '\n')) return std::nullopt;
  int code = 0;
  const auto* begin = last_.data() + at + kEndWords.size();
  const auto [end, error] = std::from_chars(begin, last_.data() + last_.size(), code);
  if (error != std::errc() || std::string_view(end, last_.data() + last_.size()) != "\n") return std::nullopt;
  return code;
}

}  // namespace troupe
