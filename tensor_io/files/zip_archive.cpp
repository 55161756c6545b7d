#include "tensor_io/files/zip_archive.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

namespace troupe {
namespace {

static_assert(std::endian::native == std::endian::little, "zip archives are little-endian");

constexpr std::uint64_t kEndBytes = 22, kLocatorBytes = 20, kWideEndBytes = 56, kEntryBytes = 46, kHeaderBytes = 30;
constexpr std::uint64_t kMaxCommentBytes = 65'535;
constexpr std::uint32_t kWide = 0xffffffff;  // stands in the extra field, with 64 bits

/// The caller has checked that it is there.
template <class Number>
Number number_at(std::string_view text, std::size_t at) {
  Number number;
  std::memcpy(&number, text.data() + at, sizeof number);
  return number;
}

bool begins(std::string_view text, std::string_view mark) { return text.starts_with(mark); }

/// Replaces those numbers that stand in the extra field. False if one is missing.
bool widen(std::string_view extra, std::initializer_list<std::uint64_t*> numbers) {
  std::string_view wide;
  while (extra.size() >= 4) {
    const auto bytes = std::min<std::size_t>(number_at<std::uint16_t>(extra, 2), extra.size() - 4);
    if (number_at<std::uint16_t>(extra, 0) == 1) wide = extra.substr(4, bytes);
    extra.remove_prefix(4 + bytes);
  }
  for (auto* number : numbers) {
    if (*number != kWide) continue;
    if (wide.size() < 8) return false;
    *number = number_at<std::uint64_t>(wide, 0);
    wide.remove_prefix(8);
  }
  return true;
}

}  // namespace

void ZipArchive::damaged(const std::string& why) const {
  file_.refuse("cannot be read: " + why, "it was cut short or damaged; write or copy it again");
}

std::string ZipArchive::text_at(std::uint64_t offset, std::uint64_t bytes) const {
  if (offset > file_.bytes() || bytes > file_.bytes() - offset)
    damaged("it points to offset " + std::to_string(offset) + ", and has " + std::to_string(file_.bytes()) + " bytes");
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file_.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string ZipArchive::directory() const {
  const auto tail_bytes = std::min(file_.bytes(), kEndBytes + kMaxCommentBytes);
  const auto tail = text_at(file_.bytes() - tail_bytes, tail_bytes);
  const auto end = tail.rfind("PK\5\6");
  if (end == tail.npos || tail.size() - end < kEndBytes) damaged("the directory at its end is missing");
  std::uint64_t bytes = number_at<std::uint32_t>(tail, end + 12), begin = number_at<std::uint32_t>(tail, end + 16);
  if (end >= kLocatorBytes && begins(std::string_view(tail).substr(end - kLocatorBytes), "PK\6\7")) {
    const auto wide_end = text_at(number_at<std::uint64_t>(tail, end - kLocatorBytes + 8), kWideEndBytes);
    if (!begins(wide_end, "PK\6\6")) damaged("the directory at its end is missing");
    bytes = number_at<std::uint64_t>(wide_end, 40), begin = number_at<std::uint64_t>(wide_end, 48);
  }
  if (bytes > kMaxDirectoryBytes) damaged("its directory has " + std::to_string(bytes) + " bytes");
  return text_at(begin, bytes);
}

ZipArchive::ZipArchive(BoundedFile file) : file_(std::move(file)) {
  const auto text = directory();
  std::uint64_t left = file_.bytes();
  for (std::string_view rest = text; !rest.empty();) {
    if (rest.size() < kEntryBytes || !begins(rest, "PK\1\2")) damaged("its directory is not one");
    const std::size_t name_bytes = number_at<std::uint16_t>(rest, 28), extra_bytes = number_at<std::uint16_t>(rest, 30),
                      comment_bytes = number_at<std::uint16_t>(rest, 32);
    if (rest.size() - kEntryBytes < name_bytes + extra_bytes + comment_bytes) damaged("its directory is cut off");
    const std::string name(rest.substr(kEntryBytes, name_bytes));
    const bool encrypted = (number_at<std::uint16_t>(rest, 8) & 1) != 0;
    std::uint64_t packed = number_at<std::uint32_t>(rest, 20);
    Entry entry{number_at<std::uint32_t>(rest, 24), number_at<std::uint32_t>(rest, 42), false};
    if (!widen(rest.substr(kEntryBytes + name_bytes, extra_bytes), {&entry.bytes, &packed, &entry.header}))
      damaged("its directory does not give the size of " + printable(name));
    entry.stored = number_at<std::uint16_t>(rest, 10) == 0 && !encrypted && packed == entry.bytes;
    if (entry.stored && entry.bytes > left) damaged("its files have more bytes than the archive");
    if (entry.stored) left -= entry.bytes;
    if (!entries_.emplace(name, entry).second) damaged(printable(name) + " appears twice");
    rest.remove_prefix(kEntryBytes + name_bytes + extra_bytes + comment_bytes);
  }
}

const ZipArchive::Entry* ZipArchive::find(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return nullptr;
  if (!found->second.stored)
    file_.refuse(printable(name) + " in it is compressed or encrypted", "unpack it, and pack it with zip -0");
  return &found->second;
}

void ZipArchive::read(const Entry& entry, std::span<std::byte> out) const {
  const auto header = text_at(entry.header, kHeaderBytes);
  if (!begins(header, "PK\3\4")) damaged("offset " + std::to_string(entry.header) + ": there is no file");
  const auto begin =
      entry.header + kHeaderBytes + number_at<std::uint16_t>(header, 26) + number_at<std::uint16_t>(header, 28);
  if (begin > file_.bytes() || out.size() > file_.bytes() - begin)
    damaged("offset " + std::to_string(entry.header) + ": a file that reaches beyond its end");
  file_.read_at(begin, out);
}

}  // namespace troupe
