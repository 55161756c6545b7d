#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tensor_io/xxh3.hpp"

namespace troupe {

/// Every change that a checkpoint makes on disk goes through here, one call of the operating system each, so that tests can refuse the
/// n-th of them or end the process's life there. Results and errno are those of the system calls.
class FileLayer {
 public:
  virtual ~FileLayer() = default;
  virtual int create(const std::string& path);  ///< write only; fails where something of that name is
  virtual ssize_t write(int fd, const void* data, std::size_t bytes);
  virtual int sync(int fd);
  virtual int close(int fd);
  virtual int make_directory(const std::string& path);
  virtual int sync_directory(const std::string& path);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int remove_file(const std::string& path);
  virtual int remove_directory(const std::string& path);
};

/// The one that asks the operating system. Any thread.
FileLayer& real_files() noexcept;

/// A new file that is written from front to back and hashed on the way. One thread. Everything throws Error(io) with the path; without
/// `finish` the file is closed and stays behind, unfinished.
class DurableFile {
 public:
  DurableFile(FileLayer& files, std::string path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text.data(), text.size()))); }
  /// Writes what is left, fsyncs, closes.
  FileDigest finish();

 private:
  void write_out(std::span<const std::byte> bytes);
  void flush();

  FileLayer& files_;
  const std::string path_;
  int fd_ = -1;
  std::string buffer_;  // small pieces wait here, big ones pass by
  DigestBuilder digest_;
};

/// Throws Error(io): `operation` on `path` failed with `errno_value`; says what to do where that is known.
[[noreturn]] void throw_io_error(const std::string& operation, const std::string& path, int errno_value);

/// Removes a file, or a folder with everything in it; symbolic links are removed, not followed. Nothing there is fine.
void remove_tree(FileLayer& files, const std::string& path);

}  // namespace troupe
