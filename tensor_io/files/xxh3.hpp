#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// XXH3-64 of bytes: finds damage, proves nothing against an attacker. `xxhsum -H3` gives the same value.
std::uint64_t xxh3(std::span<const std::byte> bytes) noexcept;
std::uint64_t xxh3(std::string_view text) noexcept;

/// 16 lower-case hexadecimal digits.
std::string xxh3_text(std::uint64_t hash);

/// XXH3-64 of bytes that come in pieces. One thread.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  void update(std::span<const std::byte> bytes) noexcept;
  /// Of all bytes since the last one; later bytes begin anew.
  std::uint64_t take() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A manifest's record of a file's content.
struct FileDigest {
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;  ///< 1 MiB, the last chunk may be shorter

  std::uint64_t bytes = 0;
  std::string xxh3;    ///< of `chunks`, as text: one pass over the file gives both
  std::string chunks;  ///< of each chunk, as text, 16 digits each, in order

  bool operator==(const FileDigest&) const = default;
  static std::string of_chunks(std::string_view chunks);
  /// Of chunk `index`.
  std::string_view chunk(std::uint64_t index) const {
    return std::string_view(chunks).substr(static_cast<std::size_t>(index) * 16, 16);
  }
};

/// XXH3-64 of whole chunks by their index, as far as it is known.
using ChunkHashes = std::map<std::uint64_t, std::uint64_t>;

/// The digest of a file whose bytes pass by in order. One thread.
class DigestBuilder {
 public:
  /// Trusts these: bytes of such a chunk are counted, not read. Hashes of chunks that have begun are ignored.
  void expect(const ChunkHashes& known);
  void update(std::span<const std::byte> bytes);
  /// Once. Throws Error(internal) if the file ends within a chunk whose hash was expected.
  FileDigest finish();

 private:
  ChunkHashes known_;
  Xxh3Stream open_;  // of the chunk that has begun
  FileDigest digest_;
};

}  // namespace troupe
