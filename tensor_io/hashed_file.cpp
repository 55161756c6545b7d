#include "tensor_io/hashed_file.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe {

HashedFile::HashedFile(const BoundedFile& file, const FileDigest& digest, std::function<std::string(std::uint64_t)> blame)
    : file_(file), digest_(digest), blame_(std::move(blame)) {}

void HashedFile::check(std::uint64_t index, std::span<const std::byte> bytes) const {
  if (xxh3_text(xxh3(bytes)) == digest_.chunk(index)) return;
  const auto begin = index * FileDigest::kChunkBytes;
  file_.refuse("was changed between offsets " + std::to_string(begin) + " and " + std::to_string(begin + bytes.size()) +
               (blame_ ? blame_(begin) : std::string()) + ": its XXH3 there is not the manifest's");
}

std::span<std::byte> HashedFile::chunk_of(std::uint64_t index) {
  const auto begin = index * FileDigest::kChunkBytes;
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(FileDigest::kChunkBytes, digest_.bytes - begin));
  buffer_.resize(FileDigest::kChunkBytes);
  const auto chunk = std::span(buffer_).first(bytes);
  if (buffered_ == index) return chunk;
  buffered_ = UINT64_MAX;
  file_.read_at(begin, chunk);
  check(index, chunk);
  buffered_ = index;
  return chunk;
}

// Hashing one chunk and reading the next from disk go on at the same time.
void HashedFile::look_ahead(std::uint64_t offset, std::uint64_t bytes) {
  constexpr std::uint64_t kAhead = std::uint64_t{8} << 20;
  const auto end = std::min(offset + bytes + kAhead, digest_.bytes);
  if (offset < ahead_begin_ || offset > ahead_end_) ahead_begin_ = ahead_end_ = offset;
  if (end <= ahead_end_ || (end < ahead_end_ + kAhead / 2 && end < digest_.bytes)) return;
  file_.will_read(ahead_end_, end - ahead_end_);
  ahead_end_ = end;
}

void HashedFile::read(std::uint64_t offset, std::span<std::byte> out) {
  look_ahead(offset, out.size());
  while (!out.empty()) {
    const auto index = offset / FileDigest::kChunkBytes;
    const auto begin = index * FileDigest::kChunkBytes;
    const auto bytes = std::min<std::uint64_t>(FileDigest::kChunkBytes, digest_.bytes - begin);
    if (offset == begin && out.size() >= bytes) {  // all of it: no second copy
      const auto whole = out.first(static_cast<std::size_t>(bytes));
      file_.read_at(begin, whole);
      check(index, whole);
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
  for (std::uint64_t begin = 0; begin < digest_.bytes; begin += FileDigest::kChunkBytes) chunk_of(begin / FileDigest::kChunkBytes);
}

}  // namespace troupe
