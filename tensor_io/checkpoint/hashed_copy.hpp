#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "tensor_io/files/xxh3.hpp"

namespace troupe {

/// Copies successive pieces of a future file, past the caches, and hashes its chunks on the way. Hashing costs hardly
/// more time than the copy while the cache still has the piece; a second pass over the memory would cost as much again.
/// One thread.
class HashedCopy {
 public:
  /// `offset`: the place of the first piece in the file, in bytes.
  explicit HashedCopy(std::uint64_t offset) : offset_(offset), whole_(offset % FileDigest::kChunkBytes == 0) {}

  /// The next piece, from memory that does not change meanwhile. The two do not overlap.
  void add(void* to, std::span<const std::byte> from);
  /// The next piece is not seen here: the chunks that it touches have no hash.
  void skip(std::uint64_t bytes);
  /// Of the chunks that were added from begin to end. Once.
  ChunkHashes take() { return std::move(hashes_); }

 private:
  std::uint64_t offset_;  // of the next piece
  bool whole_;            // all of the open chunk up to `offset_` came by
  Xxh3Stream open_;       // its bytes
  ChunkHashes hashes_;
};

}  // namespace troupe
