#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

/// A file that grows by whole records: a record that was written in part is taken back. So a full disk costs records,
/// but never leaves half of one in the middle. One thread.
class AppendFile {
 public:
  /// Nothing happens before the first append.
  explicit AppendFile(std::string path) : path_(std::move(path)) {}
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Creates missing files and folders. Throws Error(io) with the path and a remedy.
  void append(std::string_view record);
  const std::string& path() const noexcept { return path_; }

 private:
  void open();

  const std::string path_;
  int fd_ = -1;
};

/// The whole lines among the file's last `bytes`; empty if it cannot be read. First the rest after the last line end,
/// half a line of a killed process, is cut off the file.
std::string mend_and_read_tail(const std::string& path, std::int64_t bytes = 1 << 16);

}  // namespace troupe
