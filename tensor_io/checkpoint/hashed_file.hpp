#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/files/xxh3.hpp"

namespace troupe {

/// Reads any part of a file whose digest is known. The returned bytes are the same that were hashed, chunk by chunk;
/// nothing else of the file is read. One thread.
class HashedFile {
 public:
  /// All references outlive this. `blame` names the content at an offset, for errors; may be empty.
  HashedFile(const BoundedFile& file, const FileDigest& digest, std::function<std::string(std::uint64_t)> blame = {});

  /// Throws Error(bad_data) that names the range whose hash differs, Error(io).
  void read(std::uint64_t offset, std::span<std::byte> out);
  /// Every chunk.
  void verify();

 private:
  std::span<std::byte> chunk_of(std::uint64_t index);
  void read_chunk(std::uint64_t index, std::span<std::byte> out);

  const BoundedFile& file_;
  const FileDigest& digest_;
  std::function<std::string(std::uint64_t)> blame_;
  std::vector<std::byte> buffer_;
  std::uint64_t buffered_ = UINT64_MAX;  // the chunk in `buffer_`
};

}  // namespace troupe
