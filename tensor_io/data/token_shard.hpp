#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "tensor_io/files/bounded_file.hpp"

namespace troupe {

/// A file of token ids, little-endian, read piece by piece. The width of an id comes from the file, in this order:
/// - NumPy's header (.npy): integers of 8 to 64 bits in one dimension;
/// - llm.c's and modded-nanogpt's (256 int32: magic 20240520, version 1, number of tokens, then uint16; or magic
///   20240801, version 7, number of tokens, then uint32);
/// - Megatron-LM's index, a file .idx beside it, for the ids of all its sequences, one behind the other;
/// - without any of these nanoGPT's uint16, or `bits`.
/// Any thread.
class TokenShard {
 public:
  /// `bits`: 16 or 32 of a file without a header; 0: 16, if neither the vocabulary nor the ids contradict. Throws
  /// Error(bad_data) with file, offset and reason: an odd size, a foreign version or type, a count that the file does
  /// not hold, bits that contradict the header, ids that look like text or like wider ids.
  explicit TokenShard(const std::string& path, std::int64_t bits = 0, std::int64_t vocab_size = 0);
  std::int64_t tokens() const noexcept { return tokens_; }
  std::int64_t bits() const noexcept { return 8 * layout_.bytes; }
  const std::string& path() const noexcept { return path_; }
  /// Ids [first, first + out.size()). Opens the file for it, so that no shard stays open. Throws Error(bad_data) naming
  /// the file's offset for an id that is not below `vocab_size`.
  void read(std::int64_t first, std::int64_t vocab_size, std::span<std::int64_t> out) const;
  /// The largest of the ids read on opening: all, or the first, the middle and the last of a large file.
  std::int64_t largest() const noexcept { return largest_; }
  bool all_seen() const noexcept { return all_seen_; }

  /// The layout of ids in a file.
  struct Layout {
    std::uint64_t header_bytes = 0;
    std::int64_t bytes = 2;  ///< of an id
    bool is_signed = false;
    std::int64_t tokens = -1;  ///< in the header; -1: it has no number
    std::uint64_t count_offset = 0;
    bool known = false;  ///< by a header or an index
  };

 private:
  template <class Id>
  void read_as(const BoundedFile& file, std::int64_t first, std::span<std::int64_t> out) const;
  void read_ids(const BoundedFile& file, std::int64_t first, std::span<std::int64_t> out) const;
  void look(const BoundedFile& file, bool doubt);

  std::string path_;
  Layout layout_;
  std::int64_t tokens_ = 0, largest_ = -1;
  bool all_seen_ = false;
};

}  // namespace troupe
