#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

/// A file that grows by whole records: what could not be written whole is taken back, so that a full disk costs records
/// and never leaves half of one in the middle. One thread.
class AppendFile {
 public:
  /// Nothing happens before the first append.
  explicit AppendFile(std::string path) : path_(std::move(path)) {}
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Creates file and folder where they are missing. Throws Error(io) with the path and what to do.
  void append(std::string_view record);
  const std::string& path() const noexcept { return path_; }

 private:
  void open();

  const std::string path_;
  int fd_ = -1;
};

/// The whole lines among the file's last `bytes`; empty where it cannot be read. What follows the last line end, half a
/// line of a process that was killed, is cut off the file first.
std::string mend_and_read_tail(const std::string& path, std::int64_t bytes = 1 << 16);

}  // namespace troupe
