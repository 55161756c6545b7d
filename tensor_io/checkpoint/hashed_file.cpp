#include "tensor_io/checkpoint/hashed_file.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {

HashedFile::HashedFile(const BoundedFile& file, const FileDigest& digest,
                       std::function<std::string(std::uint64_t)> blame)
    : file_(file), digest_(digest), blame_(std::move(blame)) {}

// Nothing is announced to the system beforehand: what it reads ahead by itself comes in larger pages, in half the time
// from a disk.
void HashedFile::read_chunk(std::uint64_t index, std::span<std::byte> out) {
  constexpr std::size_t kPiece = std::size_t{256} << 10;  // still in a core's own cache when it is hashed
  const auto begin = index * FileDigest::kChunkBytes;
  Xxh3Stream hash;
  for (std::size_t done = 0; done < out.size(); done += kPiece) {
    const auto piece = out.subspan(done, std::min(kPiece, out.size() - done));
    file_.read_at(begin + done, piece);
    hash.update(piece);
  }
  if (xxh3_text(hash.take()) == digest_.chunk(index)) return;
  file_.refuse("was changed between offsets " + std::to_string(begin) + " and " + std::to_string(begin + out.size()) +
               (blame_ ? blame_(begin) : std::string()) + ": its XXH3 there differs from the manifest's");
}

std::span<std::byte> HashedFile::chunk_of(std::uint64_t index) {
  const auto begin = index * FileDigest::kChunkBytes;
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(FileDigest::kChunkBytes, digest_.bytes - begin));
  buffer_.resize(std::max(buffer_.size(), bytes));
  const auto chunk = std::span(buffer_).first(bytes);
  if (buffered_ == index) return chunk;
  buffered_ = UINT64_MAX;
  read_chunk(index, chunk);
  buffered_ = index;
  return chunk;
}

void HashedFile::read(std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const auto index = offset / FileDigest::kChunkBytes;
    const auto begin = index * FileDigest::kChunkBytes;
    const auto bytes = std::min<std::uint64_t>(FileDigest::kChunkBytes, digest_.bytes - begin);
    if (offset == begin && out.size() >= bytes) {  // all of it: no second copy
      const auto whole = out.first(static_cast<std::size_t>(bytes));
      read_chunk(index, whole);
      out = out.subspan(whole.size());
      offset += whole.size();
      continue;
    }
    const auto chunk = chunk_of(index).subspan(static_cast<std::size_t>(offset - begin));
    const auto piece = std::min(chunk.size(), out.size());
    std::memcpy(out.data(), chunk.data(), piece);
    out = out.subspan(piece);
    offset += piece;
  }
}

void HashedFile::verify() {
  for (std::uint64_t begin = 0; begin < digest_.bytes; begin += FileDigest::kChunkBytes)
    chunk_of(begin / FileDigest::kChunkBytes);
}

}  // namespace troupe
