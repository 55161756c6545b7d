#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "tensor_io/files/bounded_file.hpp"

namespace troupe {

/// A zip archive from an untrusted source. Only files that are stored as they are can be read, which is how torch.save
/// stores them: it takes no more memory than the archive has bytes. Reading is for any thread. Throws Error(bad_data)
/// that names the archive, Error(io).
class ZipArchive {
 public:
  struct Entry {
    std::uint64_t bytes = 0;
    std::uint64_t header = 0;  ///< offset of the header before its bytes
    bool stored = true;        ///< neither compressed nor encrypted
  };
  static constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{64} << 20;

  explicit ZipArchive(BoundedFile file);

  const BoundedFile& file() const noexcept { return file_; }
  /// By name. All stored ones together have no more bytes than the archive.
  const std::map<std::string, Entry, std::less<>>& entries() const noexcept { return entries_; }
  /// nullptr: there is none. Refuses an entry that is not stored.
  const Entry* find(const std::string& name) const;
  /// `out` has the entry's size.
  void read(const Entry& entry, std::span<std::byte> out) const;

  [[noreturn]] void damaged(const std::string& why) const;

 private:
  std::string text_at(std::uint64_t offset, std::uint64_t bytes) const;
  std::string directory() const;

  BoundedFile file_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace troupe
