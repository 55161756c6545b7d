#include "tensor_io/data/tar_shard.hpp"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>

#include "tensor_io/base/error.hpp"
#include "tensor_io/data/file_names.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {
namespace {

constexpr const char* kShards = "reading tar shards";

/// What libarchive reads from: small pieces, since most of a shard is skipped.
struct Input {
  const BoundedFile& file;
  std::uint64_t position = 0;
  std::array<std::byte, 4096> block{};
  std::exception_ptr failure;  ///< of the file, not of what it holds
};

la_ssize_t read_block(archive* reader, void* data, const void** buffer) {
  auto& input = *static_cast<Input*>(data);
  const auto bytes = std::min<std::uint64_t>(input.block.size(), input.file.bytes() - input.position);
  try {
    input.file.read_at(input.position, std::span(input.block).first(static_cast<std::size_t>(bytes)));
  } catch (const std::exception& error) {  // it must not pass through libarchive
    input.failure = std::current_exception();
    archive_set_error(reader, -1, "%s", error.what());
    return -1;
  }
  input.position += bytes;
  *buffer = input.block.data();
  return static_cast<la_ssize_t>(bytes);
}

la_int64_t skip_bytes(archive*, void* data, la_int64_t request) {
  auto& input = *static_cast<Input*>(data);
  const auto bytes = std::min<std::uint64_t>(static_cast<std::uint64_t>(request), input.file.bytes() - input.position);
  input.position += bytes;
  return static_cast<la_int64_t>(bytes);
}

/// The name's end says that it is a picture or a label: "7.jpg", "7.left.jpg".
bool is_picture_or_label(const std::string& name) {
  const auto extension = in_small_letters(name.substr(name.rfind('.') + 1));
  return extension == "jpg" || extension == "jpeg" || extension == "png" || extension == "cls";
}

/// webdataset's tar_file_iterator passes over what it keeps for itself: __meta__, and all below such a folder.
bool is_meta(const std::string& name) {
  if (!name.starts_with("__")) return false;
  const auto slash = name.find('/');
  return name.substr(0, slash).ends_with("__") && name.find("__", 2) != std::string::npos;
}

}  // namespace

const TarShard::Part* TarShard::Sample::find(std::initializer_list<const char*> extensions) const {
  for (const char* extension : extensions) {
    for (const auto& part : parts) {
      if (part.extension == extension) return &part;
    }
  }
  return nullptr;
}

std::string TarShard::Sample::extensions() const {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(8, parts.size()); ++i)
    text += (i == 0 ? "." : " .") + parts[i].extension;
  return parts.size() > 8 ? text + " ..." : text;
}

TarShard::TarShard(const std::string& path, bool keep_start) : path_(path) {
  try {
    read_headers();
    end_sample();
  } catch (const Error& error) {
    end_sample();
    if (!keep_start || samples_.empty() || error.code() != ErrorCode::bad_data) throw;
    cut_off_ = error.what();
  }
}

void TarShard::read_headers() {
  const BoundedFile file(kShards, path_, Links::followed);
  std::array<std::byte, 6> start{};
  file.read_at(0, std::span(start).first(std::min<std::size_t>(start.size(), static_cast<std::size_t>(file.bytes()))));
  if (const auto foreign = foreign_format(start); foreign == "is compressed")
    file.refuse("offset 0, magic: it is compressed, and only a plain tar can be read in any order",
                "unpack it (gunzip, zstd -d)");
  Input input{file};
  const std::unique_ptr<archive, int (*)(archive*)> reader(archive_read_new(), archive_read_free);
  archive_read_support_format_tar(reader.get());
  const auto fails = [&](const std::string& after) {
    if (input.failure) std::rethrow_exception(input.failure);
    const char* reason = archive_error_string(reader.get());
    file.refuse("offset " + std::to_string(std::max<la_int64_t>(0, archive_read_header_position(reader.get()))) +
                    (after.empty() ? "" : ", after " + after) + ": " + (reason == nullptr ? "no tar header" : reason),
                "make the shard again, or set on_bad_sample to skip to use what comes before");
  };
  if (archive_read_open2(reader.get(), &input, nullptr, read_block, skip_bytes, nullptr) != ARCHIVE_OK) fails("");
  std::string last;
  archive_entry* entry = nullptr;
  for (;;) {
    const int result = archive_read_next_header(reader.get(), &entry);
    if (result == ARCHIVE_EOF) return;
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) fails(last);
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr)
      file.refuse("offset " + std::to_string(archive_read_header_position(reader.get())) + ": a member without a name",
                  "make the shard again");
    last = "member " + printable(name);
    const auto type = archive_entry_filetype(entry);
    const bool link = type == AE_IFLNK || archive_entry_hardlink(entry) != nullptr;
    if (type == AE_IFDIR || is_meta(name)) continue;
    const std::string_view file_name = std::string_view(name).substr(std::string_view(name).rfind('/') + 1);
    if (file_name.starts_with(".") || file_name.find('.') == std::string_view::npos || (type != AE_IFREG && !link) ||
        (link && !is_picture_or_label(name))) {
      passed_over_.add(name);
      continue;
    }
    if (link) file.refuse(last + " is a link", "store the file in its place (tar --dereference --hard-dereference)");
    const auto offset = static_cast<std::uint64_t>(archive_filter_bytes(reader.get(), 0));
    const auto bytes = static_cast<std::uint64_t>(std::max<la_int64_t>(0, archive_entry_size(entry)));
    if (archive_entry_sparse_count(entry) > 0) file.refuse(last + " is a sparse file", "store it whole");
    if (offset > file.bytes() || bytes > file.bytes() - offset) {
      file.refuse("offset " + std::to_string(offset) + ", " + last + ": its " + std::to_string(bytes) +
                      " bytes go beyond the file's end at " + std::to_string(file.bytes()),
                  "make the shard again, or set on_bad_sample to skip to use what comes before");
    }
    add_member(name, offset, bytes);
  }
}

void TarShard::add_member(const std::string& name, std::uint64_t offset, std::uint64_t bytes) {
  const auto dot = name.find('.', name.rfind('/') + 1);
  const auto key = name.substr(0, dot), extension = in_small_letters(name.substr(dot + 1));
  if (samples_.empty() || samples_.back().key != key) {
    end_sample();
    samples_.push_back({key, {}});
  }
  auto& sample = samples_.back();
  if (sample.find({extension.c_str()}) != nullptr) {
    throw Error(ErrorCode::bad_data, where(sample),
                "member " + printable(name) + " is the second ." + extension + " of this sample",
                "leave one of them out, or give each sample a name of its own, up to the first dot");
  }
  sample.parts.push_back({extension, offset, bytes});
}

/// A sample without picture and label is none of a labelled picture's: README.md, 7.json.
void TarShard::end_sample() {
  if (samples_.empty()) return;
  const auto& parts = samples_.back().parts;
  if (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return is_picture_or_label(part.extension); }))
    return;
  for (const auto& part : parts) passed_over_.add("x." + part.extension);
  samples_.pop_back();
}

std::string TarShard::read(const Part& part, std::uint64_t limit) const {
  const BoundedFile file(kShards, path_, Links::followed);
  if (part.bytes > limit) {
    file.refuse("offset " + std::to_string(part.offset) + ": a ." + part.extension + " member of " +
                    std::to_string(part.bytes) + " bytes, " + std::to_string(limit) + " are allowed",
                "leave it out of the shard, or make it smaller");
  }
  std::string content(static_cast<std::size_t>(part.bytes), '\0');
  file.read_at(part.offset, std::as_writable_bytes(std::span(content)));
  return content;
}

std::string TarShard::where(const Sample& sample) const {
  return std::string(kShards) + ": " + path_ + ": sample " + printable(sample.key) +
         (sample.parts.empty() ? "" : " (offset " + std::to_string(sample.parts.front().offset) + ")");
}

}  // namespace troupe
