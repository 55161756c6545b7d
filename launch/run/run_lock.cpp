#include "launch/run/run_lock.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "launch/process/displayable.hpp"
#include "launch/run/run_identity.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatest = "latest";

fs::path normal(const std::string& folder) {
  auto path = fs::path(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();  // `runs/a/` ends in an empty name
}

// A rank's log that has nothing but the settings' refusal.
bool refuses(const fs::path& log) {
  std::ifstream in(log);
  std::string line, more;
  if (!std::getline(in, line)) return true;  // of a spare that was not needed
  return line.starts_with("error: ") && !line.starts_with("error: rank ") && !std::getline(in, more);
}

[[noreturn]] void fail(const std::string& path, int error) {
  throw Error(ErrorCode::io, displayable(path, 200), std::strerror(error), "choose another --run-dir");
}

}  // namespace

void RunLock::take() {
  if (lock_ || folder_.empty()) return;
  const auto path = normal(folder_);
  if (path.filename() == kLatest && path.parent_path().filename() == kRunsFolder)
    throw Error(ErrorCode::usage, "run_dir", "'" + displayable(folder_, 200) + "' is the link to the newest run",
                "leave it out for a new folder, or name another one");
  std::error_code failure;
  fs::create_directories(folder_, failure);
  if (failure) fail(folder_, failure.value());
  auto lock = std::make_unique<FolderLock>(folder_ + "/lock", folder_ + "/lock", displayable(folder_, 200),
                                           "give each run its own --run-dir, or leave it out");
  if (begins_) refuse_records_in(folder_);
  lock->sign();
  lock_ = std::move(lock);
  if (is_new_) std::fprintf(stderr, "run folder: %s\n", folder_.c_str());
}

void RunLock::note_exit(int code) {
  const int fd = lock_ ? open_plain(folder_ + "/lock", O_WRONLY | O_APPEND) : -1;
  if (fd < 0) return;
  const auto line = "exit code " + std::to_string(code) + "\n";
  [[maybe_unused]] const auto written = ::write(fd, line.data(), line.size());
  ::close(fd);
}

void RunLock::remove_unused() {
  if (!lock_ || !is_new_) return;
  std::error_code failure;
  std::vector<fs::path> known;
  for (const auto& entry : fs::directory_iterator(folder_, failure)) {
    const auto name = entry.path().filename().string();
    const bool is_log = (name.starts_with("rank") || name.starts_with("spare")) && name.ends_with(".log");
    if (!(is_log && refuses(entry.path())) && name != "journal" && name != "lock") return;
    known.push_back(entry.path());
  }
  lock_.reset();
  for (const auto& path : known) fs::remove(path, failure);
  fs::remove(folder_, failure);
}

void point_latest_to(const std::string& folder, int slot) {
  const auto path = normal(folder);
  if (path.parent_path() != kRunsFolder) return;
  const auto link = fs::path(kRunsFolder) / kLatest,
             made = fs::path(kRunsFolder) / (".latest-" + path.filename().string() + "-" + std::to_string(slot));
  std::error_code failure;
  const auto there = fs::symlink_status(link, failure);
  if (fs::exists(there) && !fs::is_symlink(there)) {
    std::fprintf(stderr,
                 "note: %s is a run's folder of an older version, not a link, and stays as it is; this run is in %s\n",
                 link.c_str(), displayable(folder, 200).c_str());
    return;
  }
  fs::remove(made, failure);
  fs::create_symlink(path.filename(), made, failure);
  if (!failure) fs::rename(made, link, failure);
  if (!failure) return;
  std::fprintf(stderr, "note: %s does not lead to this run, %s: %s\n", link.c_str(), displayable(folder, 200).c_str(),
               failure.message().c_str());
}

void refuse_records_in(const std::string& folder) {
  std::error_code failure;
  const auto records = folder + "/metrics.jsonl";
  if (!fs::is_regular_file(records, failure) || fs::file_size(records, failure) == 0) return;
  throw Error(ErrorCode::usage, displayable(folder, 200), "it holds another run's metrics.jsonl",
              "choose another --run_dir for a new run, or continue that one with --resume latest");
}

}  // namespace troupe
