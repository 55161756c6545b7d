#include "tensor_io/checkpoint/hashed_copy.hpp"

#include <algorithm>

#include "tensor_io/kernels/reduce_kernels.hpp"

namespace troupe {

void HashedCopy::add(void* to, std::span<const std::byte> from) {
  // Still in a core's first cache when it is hashed, while the next one is on its way there.
  constexpr std::uint64_t kPiece = 16 << 10;
  auto* target = static_cast<std::byte*>(to);
  while (!from.empty()) {
    const auto left = FileDigest::kChunkBytes - offset_ % FileDigest::kChunkBytes;
    const auto piece = from.first(static_cast<std::size_t>(std::min({std::uint64_t{from.size()}, left, kPiece})));
    copy_streaming(target, piece.data(), piece.size(), kPiece);
    if (whole_) open_.update(piece);
    target += piece.size();
    from = from.subspan(piece.size());
    offset_ += piece.size();
    if (piece.size() < left) continue;
    if (whole_) hashes_.emplace_hint(hashes_.end(), offset_ / FileDigest::kChunkBytes - 1, open_.take());
    whole_ = true;
  }
}

void HashedCopy::skip(std::uint64_t bytes) {
  if (bytes == 0) return;
  offset_ += bytes;
  whole_ = offset_ % FileDigest::kChunkBytes == 0;
  open_.take();
}

}  // namespace troupe
