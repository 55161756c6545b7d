#pragma once
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tensor_io/files/file_layer.hpp"
#include "tests/support/scratch_directory.hpp"

namespace troupe::testing {

/// A disk that refuses the n-th call, or after which no call has an effect: what is on the disk then is what a process
/// killed there leaves.
class FaultyFiles final : public FileLayer {
 public:
  enum class Fault { refuse_once, kill };
  FaultyFiles() = default;
  FaultyFiles(Fault fault, int at, int errno_value) : fault_(fault), at_(at), errno_(errno_value) {}

  int calls() const { return calls_; }
  bool happened() const { return happened_; }

  /// What a power cut takes besides: files that were not synced become empty, renames whose directory was not synced
  /// are undone.
  void lose_power() {
    for (const auto& path : unsynced_files_) {
      std::error_code error;
      if (std::filesystem::exists(path, error)) std::filesystem::resize_file(path, 0, error);
    }
    for (auto rename = unsynced_renames_.rbegin(); rename != unsynced_renames_.rend(); ++rename) {
      std::error_code error;
      std::filesystem::rename(rename->to, rename->from, error);
      if (rename->overwritten) write_text(rename->to, *rename->overwritten);
    }
    unsynced_renames_.clear();
    unsynced_files_.clear();
  }

  int create(const std::string& path) override {
    if (fails()) return -1;
    const int fd = FileLayer::create(path);
    if (fd >= 0) {
      open_[fd] = path;
      unsynced_files_.insert(path);
    }
    return fd;
  }
  ssize_t write(int fd, const void* data, std::size_t bytes) override {
    if (fails()) {
      if (bytes > 1 && calls_ == at_) (void)!FileLayer::write(fd, data, bytes / 2);  // torn
      errno = errno_;
      return -1;
    }
    return FileLayer::write(fd, data, std::max<std::size_t>(bytes / 2, 1));  // never all at once
  }
  int sync(int fd) override {
    if (fails()) return -1;
    unsynced_files_.erase(open_[fd]);
    return 0;  // the test itself needs no disk to survive
  }
  int close(int fd) override {
    const bool fail = fails();
    FileLayer::close(fd);  // in any case: a dead process has no open files
    if (fail) errno = errno_;
    return fail ? -1 : 0;
  }
  int make_directory(const std::string& path) override { return fails() ? -1 : FileLayer::make_directory(path); }
  int sync_directory(const std::string& path) override {
    if (fails()) return -1;
    std::erase_if(unsynced_renames_,
                  [&](const Rename& rename) { return std::filesystem::path(rename.to).parent_path() == path; });
    return 0;
  }
  int rename(const std::string& from, const std::string& to) override {
    if (fails()) return -1;
    Rename record{from, to, {}};
    if (std::filesystem::is_regular_file(to)) record.overwritten = read_text(to);
    const int result = FileLayer::rename(from, to);
    if (result == 0) {
      unsynced_renames_.push_back(std::move(record));
      // What was not synced under the old name is not under the new one, either.
      std::set<std::string> paths;
      for (const auto& path : unsynced_files_) {
        const bool moved = path == from || path.starts_with(from + "/");
        paths.insert(moved ? to + path.substr(from.size()) : path);
      }
      unsynced_files_ = std::move(paths);
    }
    return result;
  }
  int remove_file(const std::string& path) override { return fails() ? -1 : FileLayer::remove_file(path); }
  int remove_directory(const std::string& path) override { return fails() ? -1 : FileLayer::remove_directory(path); }

 private:
  struct Rename {
    std::string from, to;
    std::optional<std::string> overwritten;
  };

  bool fails() {
    ++calls_;
    const bool now = at_ > 0 && (fault_ == Fault::kill ? calls_ >= at_ : calls_ == at_);
    happened_ = happened_ || now;
    if (now) errno = errno_;
    return now;
  }

  Fault fault_ = Fault::refuse_once;
  int at_ = 0;
  int errno_ = EIO;
  int calls_ = 0;
  bool happened_ = false;
  std::map<int, std::string> open_;
  std::set<std::string> unsynced_files_;
  std::vector<Rename> unsynced_renames_;
};

}  // namespace troupe::testing
