#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// XXH3-64 of bytes: finds damage, proves nothing against an attacker. `xxhsum -H3` gives the same value.
std::uint64_t xxh3(std::span<const std::byte> bytes) noexcept;
std::uint64_t xxh3(std::string_view text) noexcept;

/// 16 lower-case hexadecimal digits.
std::string xxh3_text(std::uint64_t hash);

/// What a manifest says about a file's content.
struct FileDigest {
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;  ///< 1 MiB, the last chunk may be shorter

  std::uint64_t bytes = 0;
  std::string xxh3;    ///< of `chunks`, as text: one pass over the file gives both
  std::string chunks;  ///< of each chunk, as text, 16 digits each, in order

  bool operator==(const FileDigest&) const = default;
  static std::string of_chunks(std::string_view chunks);
  /// Of chunk `index`.
  std::string_view chunk(std::uint64_t index) const { return std::string_view(chunks).substr(static_cast<std::size_t>(index) * 16, 16); }
  /// The offset of the first chunk that differs, or nothing. Both are of files of the same length.
  std::optional<std::uint64_t> first_difference(const FileDigest& other) const noexcept;
};

/// The digest of a file whose bytes pass by in order. One thread.
class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  void update(std::span<const std::byte> bytes);
  /// Once.
  FileDigest finish();

 private:
  void end_chunk();

  struct State;
  std::unique_ptr<State> state_;
  std::uint64_t in_chunk_ = 0;  // bytes of the chunk that is open
  FileDigest digest_;
};

}  // namespace troupe
