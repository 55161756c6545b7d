#include "tensor_io/xxh3.hpp"

// Header only: an installed Troupe then asks nothing of its users.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "tensor_io/instruction_set.hpp"
#include "tensor_io/xxh3_wide.hpp"

namespace troupe {

namespace {

std::uint64_t xxh3_generic(const void* data, std::size_t bytes) noexcept { return XXH3_64bits(data, bytes); }

auto* choose_xxh3() noexcept {
  switch (instruction_set()) {
#if defined(__x86_64__)
    case InstructionSet::avx512: return xxh3_avx512;
    case InstructionSet::avx2: return xxh3_avx2;
#endif
    default: return xxh3_generic;
  }
}

}  // namespace

std::uint64_t xxh3(std::span<const std::byte> bytes) noexcept {
  static auto* const best = choose_xxh3();
  return best(bytes.data(), bytes.size());
}
std::uint64_t xxh3(std::string_view text) noexcept { return xxh3(std::as_bytes(std::span(text))); }

std::string xxh3_text(std::uint64_t hash) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4) text[static_cast<std::size_t>(i)] = digits[hash & 15];
  return text;
}

std::optional<std::uint64_t> FileDigest::first_difference(const FileDigest& other) const noexcept {
  const auto [mine, theirs] = std::mismatch(chunks.begin(), chunks.end(), other.chunks.begin(), other.chunks.end());
  if (mine == chunks.end() && theirs == other.chunks.end()) return std::nullopt;
  return static_cast<std::uint64_t>(mine - chunks.begin()) / 16 * kChunkBytes;
}

std::string FileDigest::of_chunks(std::string_view chunks) { return xxh3_text(troupe::xxh3(chunks)); }

struct DigestBuilder::State {
  XXH3_state_t chunk;
};

DigestBuilder::DigestBuilder() : state_(std::make_unique<State>()) {}
DigestBuilder::~DigestBuilder() = default;

void DigestBuilder::update(std::span<const std::byte> bytes) {
  digest_.bytes += bytes.size();
  while (!bytes.empty()) {
    const auto piece = bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), FileDigest::kChunkBytes - in_chunk_)));
    bytes = bytes.subspan(piece.size());
    if (piece.size() == FileDigest::kChunkBytes) {
      digest_.chunks += xxh3_text(troupe::xxh3(piece));
      continue;
    }
    if (in_chunk_ == 0) XXH3_64bits_reset(&state_->chunk);
    XXH3_64bits_update(&state_->chunk, piece.data(), piece.size());
    in_chunk_ += piece.size();
    if (in_chunk_ == FileDigest::kChunkBytes) end_chunk();
  }
}

void DigestBuilder::end_chunk() {
  digest_.chunks += xxh3_text(XXH3_64bits_digest(&state_->chunk));
  in_chunk_ = 0;
}

FileDigest DigestBuilder::finish() {
  if (in_chunk_ > 0) end_chunk();
  digest_.xxh3 = FileDigest::of_chunks(digest_.chunks);
  return std::move(digest_);
}

}  // namespace troupe
