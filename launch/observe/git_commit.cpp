#include "launch/observe/git_commit.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

// A folder above the program may be another user's, and so may what lies there: only plain files of ours or root's.
std::string text_of(const fs::path& path, std::uint64_t limit) {
  try {
    const BoundedFile file("reading the commit", path.string());
    return file.owner() == 0 || file.owner() == ::geteuid() ? file.read_all(limit) : std::string();
  } catch (const Error&) {
    return {};
  }
}

std::string first_line_of(const fs::path& path) {
  constexpr std::uint64_t kMostBytes = 4096;
  auto line = text_of(path, kMostBytes);
  line.resize(std::min(line.size(), line.find('\n')));
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
  return line;
}

std::string commit_or_nothing(const std::string& text) {
  const bool digits = std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
  return digits && (text.size() == 40 || text.size() == 64) ? text : std::string();
}

std::string packed_commit(const fs::path& path, const std::string& name) {
  constexpr std::uint64_t kMostBytes = 16 << 20;
  std::istringstream lines(text_of(path, kMostBytes));
  for (std::string line; std::getline(lines, line);) {
    const auto blank = line.find(' ');
    if (blank != std::string::npos && line.compare(blank + 1, std::string::npos, name) == 0)
      return commit_or_nothing(line.substr(0, blank));
  }
  return {};
}

// A worktree's .git is a file that says where its folder is; branches are in that of the first tree.
std::string commit_in(fs::path git) {
  std::error_code ignored;
  constexpr std::string_view kElsewhere = "gitdir: ", kBranch = "ref: ";
  if (fs::is_regular_file(git, ignored)) {
    const auto line = first_line_of(git);
    if (!line.starts_with(kElsewhere)) return {};
    git = git.parent_path() / line.substr(kElsewhere.size());
  }
  const auto head = first_line_of(git / "HEAD");
  if (!head.starts_with(kBranch)) return commit_or_nothing(head);
  const auto name = head.substr(kBranch.size());
  if (name.find("..") != std::string::npos || !name.starts_with("refs/")) return {};
  const auto common = first_line_of(git / "commondir");
  for (const auto& folder : {git, common.empty() ? git : git / common}) {
    if (auto commit = commit_or_nothing(first_line_of(folder / name)); !commit.empty()) return commit;
    if (auto commit = packed_commit(folder / "packed-refs", name); !commit.empty()) return commit;
  }
  return {};
}

}  // namespace

std::string git_commit(const std::string& folder) {
  std::error_code failure;
  auto place = fs::absolute(folder, failure);
  for (; !failure && !place.empty(); place = place.parent_path()) {
    if (fs::exists(place / ".git", failure)) return commit_in(place / ".git");
    if (place == place.root_path()) break;
  }
  return {};
}

}  // namespace troupe
