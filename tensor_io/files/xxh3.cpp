#include "tensor_io/files/xxh3.hpp"

// Header only: an installed Troupe then asks nothing of its users.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/instruction_set.hpp"
#include "tensor_io/files/xxh3_wide.hpp"

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

void update_generic(void* state, const void* data, std::size_t bytes) noexcept {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, bytes);
}

auto* choose_update() noexcept {
  switch (instruction_set()) {
#if defined(__x86_64__)
    case InstructionSet::avx512: return xxh3_update_avx512;
    case InstructionSet::avx2: return xxh3_update_avx2;
#endif
    default: return update_generic;
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

std::string FileDigest::of_chunks(std::string_view chunks) { return xxh3_text(troupe::xxh3(chunks)); }

struct Xxh3Stream::State {
  XXH3_state_t pieces;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->pieces); }
Xxh3Stream::~Xxh3Stream() = default;

void Xxh3Stream::update(std::span<const std::byte> bytes) noexcept {
  static auto* const best = choose_update();
  best(&state_->pieces, bytes.data(), bytes.size());
}

std::uint64_t Xxh3Stream::take() noexcept {
  const auto value = XXH3_64bits_digest(&state_->pieces);
  XXH3_64bits_reset(&state_->pieces);
  return value;
}

void DigestBuilder::expect(const ChunkHashes& known) {
  const auto next = (digest_.bytes + FileDigest::kChunkBytes - 1) / FileDigest::kChunkBytes;
  known_.insert(known.lower_bound(next), known.end());
}

void DigestBuilder::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto index = digest_.bytes / FileDigest::kChunkBytes, in_chunk = digest_.bytes % FileDigest::kChunkBytes;
    const auto piece = bytes.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), FileDigest::kChunkBytes - in_chunk)));
    const bool ends = in_chunk + piece.size() == FileDigest::kChunkBytes;
    bytes = bytes.subspan(piece.size());
    digest_.bytes += piece.size();
    if (const auto known = known_.find(index); known != known_.end()) {
      if (ends) digest_.chunks += xxh3_text(known->second);
    } else if (piece.size() == FileDigest::kChunkBytes) {
      digest_.chunks += xxh3_text(troupe::xxh3(piece));
    } else {
      open_.update(piece);
      if (ends) digest_.chunks += xxh3_text(open_.take());
    }
  }
}

FileDigest DigestBuilder::finish() {
  if (digest_.bytes % FileDigest::kChunkBytes != 0) {
    if (const auto index = digest_.bytes / FileDigest::kChunkBytes; known_.contains(index))
      throw Error(ErrorCode::internal, "hashing a file",
                  "it ends within chunk " + std::to_string(index) + ", of which a whole one's hash was expected");
    digest_.chunks += xxh3_text(open_.take());
  }
  digest_.xxh3 = FileDigest::of_chunks(digest_.chunks);
  return std::move(digest_);
}

}  // namespace troupe
