#include "launch/compiled/compiled_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/version.h>
#include <unistd.h>

#include <fcntl.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>

#include "launch/network/sha256.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/checkpoint/safetensors.hpp"
#include "tensor_io/files/xxh3.hpp"

namespace troupe {
namespace {

constexpr std::string_view kMagic = "TROUPEM1";
constexpr std::uint64_t kMostManifestBytes = std::uint64_t{64} << 20;
constexpr std::size_t kChunk = std::size_t{1} << 20;

// Parts of a file, one after the other.
void read_in_chunks(const BoundedFile& file, std::uint64_t offset, std::uint64_t size,
                    const std::function<void(std::string_view)>& take) {
  std::string chunk;
  for (std::uint64_t done = 0; done < size; done += chunk.size()) {
    chunk.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, size - done)));
    file.read_at(offset + done, std::as_writable_bytes(std::span(chunk)));
    take(chunk);
  }
}

// A user who may write to it decides what this process does.
void require_trusted(const BoundedFile& file) {
  if (file.owner() != ::geteuid() && file.owner() != 0)
    file.refuse("belongs to another user (" + std::to_string(file.owner()) + "), and a compiled model is code",
                "copy it, if you trust it");
  if ((file.mode() & (S_IWGRP | S_IWOTH)) != 0)
    file.refuse("may be changed by other users, and a compiled model is code", "chmod go-w " + file.path());
}

std::string read_manifest(const BoundedFile& file, std::uint64_t& sections_begin) {
  std::array<char, 16> head{};
  if (file.bytes() < head.size()) file.refuse("is too short to be a compiled model", "make one with troupe compile");
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  if (std::string_view(head.data(), kMagic.size()) != kMagic) {
    const auto format = foreign_format(file);
    file.refuse(format.empty() ? "is not a compiled model" : "is " + format + ", not a compiled model",
                "make one from a Python model with troupe compile");
  }
  std::uint64_t size = 0;
  std::memcpy(&size, head.data() + kMagic.size(), sizeof size);
  if (size > kMostManifestBytes || size > file.bytes() - head.size())
    file.refuse("is damaged: it claims a manifest of " + std::to_string(size) + " bytes",
                "make it again: troupe compile");
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read_at(head.size(), std::as_writable_bytes(std::span(text)));
  sections_begin = head.size() + size;
  return text;
}

}  // namespace

std::string missing_instructions(const std::vector<std::string>& needed, std::string_view cpuinfo) {
  auto begin = cpuinfo.find("\nflags");
  if (begin == std::string_view::npos) return {};  // not x86: there is nothing to compare
  const auto line = cpuinfo.substr(begin + 1, cpuinfo.find('\n', begin + 1) - begin - 1);
  std::istringstream words{std::string(line)};
  const std::vector<std::string> there{std::istream_iterator<std::string>(words), {}};
  std::string missing;
  for (const auto& flag : needed) {
    if (std::find(there.begin(), there.end(), flag) == there.end()) missing += (missing.empty() ? "" : ", ") + flag;
  }
  return missing;
}

CompiledFile::CompiledFile(const std::string& path) : file_("reading the compiled model", path, Links::followed) {
  require_trusted(file_);
  const auto text = read_manifest(file_, sections_begin_);
  hash_ = xxh3(std::as_bytes(std::span(text)));  // it holds the sections' digests
  manifest_ = parse_compiled_manifest(text, file_.operation() + ": " + file_.path());
  for (const auto& s : manifest_.sections) {
    if (s.size > file_.bytes() || s.offset > file_.bytes() - s.size ||
        sections_begin_ > file_.bytes() - s.size - s.offset)
      file_.refuse("ends before its section " + printable(s.name), "copy it again");
  }
  if (manifest_.torch != TORCH_VERSION) {
    throw Error(ErrorCode::unavailable, file_.operation() + ": " + path,
                "it is compiled for LibTorch " + manifest_.torch + ", and this is " TORCH_VERSION,
                "compile it again with torch==" TORCH_VERSION);
  }
  std::ifstream cpuinfo("/proc/cpuinfo");
  const auto missing =
      missing_instructions(manifest_.instruction_set, std::string(std::istreambuf_iterator<char>(cpuinfo), {}));
  if (!missing.empty()) {
    throw Error(ErrorCode::unavailable, file_.operation() + ": " + path,
                "it is compiled for a processor with " + missing + ", which this one lacks",
                "compile it on a machine of this kind");
  }
}

const CompiledSection& CompiledFile::checked(const std::string& name) const {
  const auto& s = *manifest_.section(name);
  Sha256 digest;
  read_in_chunks(file_, sections_begin_ + s.offset, s.size, [&](std::string_view chunk) { digest.add(chunk); });
  if (digest.hex() != s.sha256)
    file_.refuse("is damaged: its section " + printable(name) + " does not match its checksum", "copy it again");
  return s;
}

NamedTensors CompiledFile::values() const {
  const auto& s = checked("values");
  const SafetensorsFile file(file_.part(sections_begin_ + s.offset, s.size));
  NamedTensors tensors;
  for (const auto& entry : file.entries()) tensors.emplace_back(entry.name, file.read(entry));
  return tensors;
}

CompiledFile::InMemory::~InMemory() { ::close(fd_); }

std::string CompiledFile::InMemory::path() const {
  static std::atomic<std::uint64_t> opened = 0;
  std::string text = "/proc/self/fd/";
  for (auto number = ++opened; number != 0; number /= 2) text += number % 2 == 0 ? "/" : "./";  // the same folder
  return text + std::to_string(fd_);
}

std::unique_ptr<CompiledFile::InMemory> CompiledFile::section_in_memory(const std::string& name) const {
  const auto& s = *manifest_.section(name);
  const int fd = ::memfd_create("troupe-compiled", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw Error(ErrorCode::unavailable, "memory for a compiled model", std::strerror(errno));
  auto memory = std::make_unique<InMemory>(fd);
  Sha256 digest;  // of what is opened, not of what was read once before
  read_in_chunks(file_, sections_begin_ + s.offset, s.size, [&](std::string_view chunk) {
    digest.add(chunk);
    while (!chunk.empty()) {
      const auto written = ::write(fd, chunk.data(), chunk.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) throw Error(ErrorCode::unavailable, "memory for a compiled model", std::strerror(errno));
      chunk.remove_prefix(static_cast<std::size_t>(written));
    }
  });
  if (digest.hex() != s.sha256)
    file_.refuse("is damaged: its section " + printable(name) + " does not match its checksum", "copy it again");
  ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  return memory;
}

}  // namespace troupe
