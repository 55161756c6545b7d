#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "tensor_io/files/xxh3.hpp"

namespace troupe {

/// Every change that a checkpoint makes on disk is one call here, of one system call. So tests can refuse the n-th of
/// them or end the process's life there. Results and errno are those of the system calls.
class FileLayer {
 public:
  virtual ~FileLayer() = default;
  virtual int create(const std::string& path);  ///< write only; fails if the name exists
  virtual ssize_t write(int fd, const void* data, std::size_t bytes);
  virtual int sync(int fd);
  virtual int close(int fd);
  virtual int make_directory(const std::string& path);
  virtual int sync_directory(const std::string& path);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int remove_file(const std::string& path);
  virtual int remove_directory(const std::string& path);
};

/// The one that calls the operating system. Any thread.
FileLayer& real_files() noexcept;

/// A new file that is written from front to back and hashed on the way. One thread. Everything throws Error(io) with
/// the path; without `finish` the file is closed and stays behind, unfinished.
///
/// It goes past the page cache (O_DIRECT) if the file system can: a checkpoint is not read again soon, and copying it
/// there costs more processor time than all the rest. Data that is at a page's start, both in memory and in the file,
/// is not copied at all.
class DurableFile {
 public:
  static constexpr std::size_t kPage = 4096;

  DurableFile(FileLayer& files, std::string path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void append(std::span<const std::byte> bytes);
  /// Hashes of future data, by chunks of the file that have not begun: DigestBuilder::expect.
  void expect(const ChunkHashes& known) { digest_.expect(known); }
  void append(std::string_view text) { append(std::as_bytes(std::span(text.data(), text.size()))); }
  /// Writes the rest, fsyncs, closes. Once.
  FileDigest finish();

 private:
  void write_out(std::span<const std::byte> bytes);
  void flush();
  bool go_through_cache() noexcept;

  FileLayer& files_;
  const std::string path_;
  int fd_ = -1;
  bool direct_ = false;
  std::unique_ptr<std::byte, void (*)(void*)> buffer_;  // whole pages but for the last ones
  std::size_t buffered_ = 0;
  DigestBuilder digest_;
};

/// A file at `path`, whole or not at all: `write` fills one beside it, which is fsynced and renamed over it. If `write`
/// throws, nothing stays. Throws Error(io).
void replace_file(const std::string& path, FileLayer& files, const std::function<void(DurableFile&)>& write);

/// The same, of a text.
void replace_text(const std::string& path, std::string_view text);

/// A file in a folder that others may write to: a symbolic link there is not followed (ELOOP), and opening a pipe
/// without a reader fails. `flags` as open's, `mode` of a new file too. -1: the reason is in errno, in words from
/// io_cause.
int open_plain(const std::string& path, int flags, unsigned mode = 0666);
std::string io_cause(int errno_value);
/// Throws Error(io) if the folder's name is a symbolic link of another user but root. This user's own are followed.
void refuse_foreign_link(const std::string& folder);

/// Whether a path of the user's is there, or is a folder. Throws Error(io) with `setting` and path if no one can say:
/// a folder on the way is closed, links lead in a circle, or a name is too long.
bool is_there(const std::string& path, const std::string& setting);
bool is_folder(const std::string& path, const std::string& setting);

/// Throws Error(io): `operation` on `path` failed with `errno_value`; with a remedy if one is known.
[[noreturn]] void throw_io_error(const std::string& operation, const std::string& path, int errno_value);

/// The names in a folder. Throws Error(io).
std::set<std::string> names_in(const std::string& folder);

/// Removes a file, or a folder with everything in it; symbolic links are removed, not followed. A missing one is fine.
void remove_tree(FileLayer& files, const std::string& path);

}  // namespace troupe
