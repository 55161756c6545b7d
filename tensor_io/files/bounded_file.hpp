#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// How a file behind a symbolic link is opened. Troupe writes no links, so among its own files one is refused. Files
/// that a user names, or another tool wrote, may be links (each file in Hugging Face's cache is).
enum class Links : std::uint8_t { refused, followed };

/// A file from an untrusted source, opened for reading with pread: with a mapping, the process would end by
/// SIGBUS if the file is truncated. Only a regular file opens; a pipe or a device is refused. Reading is for
/// any thread. Throws Error(io) if the operating system refuses, Error(bad_data) if the file's content is
/// wrong.
class BoundedFile {
 public:
  /// `operation` is the reader's purpose, for errors: "reading the checkpoint". `directory_fd` as for openat.
  BoundedFile(std::string operation, const std::string& path, Links links = Links::refused);
  BoundedFile(std::string operation, int directory_fd, const std::string& name, std::string display_path,
              Links links = Links::refused);
  BoundedFile(BoundedFile&& other) noexcept;
  BoundedFile& operator=(BoundedFile&&) = delete;
  ~BoundedFile();

  const std::string& path() const noexcept { return path_; }
  const std::string& operation() const noexcept { return operation_; }
  /// The size when it was opened.
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// The user it belongs to.
  std::uint32_t owner() const noexcept { return owner_; }
  /// Its permissions, as stat has them.
  std::uint32_t mode() const noexcept { return mode_; }
  /// `bytes` of it from `offset` on, as a file that begins there; both inside of this one.
  BoundedFile part(std::uint64_t offset, std::uint64_t bytes) const;
  /// Fills `out`, or throws: a file that ends before (it was truncated) is Error(bad_data).
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  /// The whole file; Error(bad_data) before anything is allocated if it has more than `limit` bytes.
  std::string read_all(std::uint64_t limit) const;

  /// Throws Error(bad_data) that names this file.
  [[noreturn]] void refuse(const std::string& cause, std::string remedy = {}) const;

 private:
  BoundedFile() = default;

  std::string operation_;
  std::string path_;
  int fd_ = -1;
  std::uint64_t begin_ = 0;  // offsets count from here
  std::uint64_t bytes_ = 0;
  std::uint32_t owner_ = 0, mode_ = 0;
};

/// A name out of an untrusted file, made printable: quoted, at most 80 characters, only printable ASCII.
std::string printable(std::string_view name);

/// The format of a file that starts with these bytes, if it is a foreign one: a pickle, a PyTorch archive, a Git LFS
/// pointer or the like; else empty. Pickles can run code when they are loaded, so Troupe never does.
std::string foreign_format(std::span<const std::byte> start);
/// The same of a file.
std::string foreign_format(const BoundedFile& file);
/// The remedy for `format`, which foreign_format returned, for errors.
std::string foreign_format_remedy(const std::string& format);

}  // namespace troupe
