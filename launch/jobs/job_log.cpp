#include "launch/jobs/job_log.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <span>
#include <sstream>

#include "launch/process/displayable.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {
namespace {

constexpr std::string_view kEndWords = "troupe: ended with exit code ";
constexpr std::size_t kMostLast = 64 << 10;

std::optional<BoundedFile> opened(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0 && errno == ENOENT) return std::nullopt;
  std::optional<BoundedFile> file(std::in_place, "reading the job's output", path);
  if (file->owner() != ::geteuid()) file->refuse("belongs to another user (uid " + std::to_string(file->owner()) + ")");
  return file;
}

std::uint64_t size_of(const std::string& path) {
  const auto file = opened(path);
  return file ? file->bytes() : 0;
}

std::string text_from(const std::string& path, std::uint64_t begin) {
  const auto file = opened(path);
  if (!file || file->bytes() <= begin) return {};
  std::string text(file->bytes() - begin, '\0');
  file->read_at(begin, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

std::string job_log_of(const std::string& folder) { return folder + "/launch.log"; }
std::string end_line(int exit_code) { return std::string(kEndWords) + std::to_string(exit_code); }

JobLog JobLog::last_lines(const std::string& path, int lines) {
  const auto end = size_of(path);
  const auto begin = end > kMostLast ? end - kMostLast : 0;
  const auto text = text_from(path, begin);
  auto at = text.size();
  for (int line = 0; line <= lines && at != std::string::npos && at > 0; ++line) at = text.rfind('\n', at - 1);
  return {path, begin + (at == std::string::npos || at == 0 ? 0 : at + 1)};
}

std::string JobLog::take_new() {
  auto text = text_from(path_, next_);
  next_ += text.size();
  last_ += text;
  if (last_.size() > kMostLast) last_.erase(0, last_.size() - kMostLast);
  return text;
}

void JobLog::show_new() {
  const auto text = take_new();
  if (text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void JobLog::show_foreign() {
  std::istringstream text(take_new());
  for (std::string line; std::getline(text, line);) std::puts(displayable(line, line.size()).c_str());
  std::fflush(stdout);
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
