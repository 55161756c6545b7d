#include "tensor_io/files/bounded_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "tensor_io/base/error.hpp"

namespace troupe {

namespace {

constexpr const char* kLfsPointer = "is a Git LFS pointer, not the file";
constexpr const char* kCompressed = "is compressed";

std::string system_message(int errno_value) { return std::system_category().message(errno_value); }

}  // namespace

BoundedFile::BoundedFile(std::string operation, const std::string& path, Links links)
    : BoundedFile(std::move(operation), AT_FDCWD, path, path, links) {}

BoundedFile::BoundedFile(std::string operation, int directory_fd, const std::string& name, std::string display_path,
                         Links links)
    : operation_(std::move(operation)),
      path_(std::move(display_path)),
      // O_NONBLOCK: opening a pipe that nobody writes to must not wait.
      fd_(::openat(directory_fd, name.c_str(),
                   O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (links == Links::refused ? O_NOFOLLOW : 0))) {
  if (fd_ < 0) {
    const int why = errno;
    if (why == ELOOP)
      refuse(links == Links::refused ? "is a symbolic link, and links are not followed here"
                                     : "is a symbolic link that leads to itself",
             "put the file itself there");
    if (why == ENOENT || why == ENOTDIR) refuse("is missing", "put it back, or name one that exists");
    throw Error(ErrorCode::io, operation_ + ": " + path_, system_message(why));
  }
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(std::exchange(fd_, -1));
    refuse("is not a regular file", "put a file there");
  }
  bytes_ = static_cast<std::uint64_t>(status.st_size);
  owner_ = status.st_uid;
  mode_ = status.st_mode;
}

BoundedFile::BoundedFile(BoundedFile&& other) noexcept
    : operation_(std::move(other.operation_)),
      path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      begin_(other.begin_),
      bytes_(other.bytes_),
      owner_(other.owner_),
      mode_(other.mode_) {}

BoundedFile BoundedFile::part(std::uint64_t offset, std::uint64_t bytes) const {
  BoundedFile part;
  part.operation_ = operation_;
  part.path_ = path_;
  part.fd_ = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (part.fd_ < 0) throw Error(ErrorCode::io, operation_ + ": " + path_, system_message(errno));
  part.begin_ = begin_ + offset;
  part.bytes_ = bytes;
  part.owner_ = owner_;
  part.mode_ = mode_;
  return part;
}

BoundedFile::~BoundedFile() {
  if (fd_ >= 0) ::close(fd_);
}

void BoundedFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto place = begin_ + offset;
    const auto got =
        ::pread(fd_, out.data(), std::min<std::size_t>(out.size(), std::size_t{1} << 30), static_cast<off_t>(place));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw Error(ErrorCode::io, operation_ + ": " + path_,
                  "reading at offset " + std::to_string(offset) + ": " + system_message(errno));
    if (got == 0)
      refuse("ends at offset " + std::to_string(offset) + ", " + std::to_string(out.size()) + " bytes too early",
             "don't change it while it is read, or copy it again");
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::string BoundedFile::read_all(std::uint64_t limit) const {
  if (bytes_ > limit)
    refuse("has " + std::to_string(bytes_) + " bytes, more than the " + std::to_string(limit) + " allowed",
           "check that it is the right file");
  std::string text(static_cast<std::size_t>(bytes_), '\0');
  read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void BoundedFile::refuse(const std::string& cause, std::string remedy) const {
  throw Error(ErrorCode::bad_data, operation_ + ": " + path_, cause, std::move(remedy));
}

std::string printable(std::string_view name) {
  static constexpr std::size_t kLimit = 80;
  std::string text = "'";
  for (const char c : name.substr(0, kLimit)) text += (c >= 0x20 && c < 0x7f) ? c : '?';
  return text + (name.size() > kLimit ? "…'" : "'");
}

std::string foreign_format(const BoundedFile& file) {
  std::array<std::byte, 512> start{};
  const auto seen = std::span(start).first(std::min<std::size_t>(file.bytes(), start.size()));
  file.read_at(0, seen);
  return foreign_format(seen);
}

std::string foreign_format(std::span<const std::byte> start) {
  auto begins = [start](std::string_view magic, std::size_t offset = 0) {
    return start.size() >= offset + magic.size() &&
           std::equal(magic.begin(), magic.end(), start.begin() + static_cast<std::ptrdiff_t>(offset),
                      [](char a, std::byte b) { return std::byte(a) == b; });
  };
  // A safetensors file starts with the length of its header, and 640 is "\x80\x02", which is how a pickle starts, too.
  if (begins(std::string(4, '\0'), 4) && begins("{", 8)) return {};
  if (begins("PK\x03\x04") || begins("PK\x05\x06")) return "is a zip archive: what torch.save and TorchScript write";
  for (const char protocol : {'\x02', '\x03', '\x04', '\x05'}) {
    if (begins(std::string{'\x80', protocol})) return "is a Python pickle";
  }
  if (begins("ustar", 257)) return "is a tar archive: what very old versions of torch.save wrote";
  if (begins("version https://git-lfs.github.com/spec/")) return kLfsPointer;
  // gzip, zstd, xz, bzip2, lz4
  for (const char* magic : {"\x1f\x8b", "\x28\xb5\x2f\xfd", "\xfd\x37zXZ", "BZh", "\x04\x22\x4d\x18"}) {
    if (begins(magic)) return kCompressed;
  }
  if (begins("\x89HDF")) return "is an HDF5 file";
  if (begins("GGUF")) return "is a GGUF file";
  return {};
}

std::string foreign_format_remedy(const std::string& format) {
  if (format == kLfsPointer) return "run git lfs pull to get the file itself";
  if (format == kCompressed) return "unpack it first";
  return "loading such a file can run code, so Troupe never does; convert it in Python with "
         "safetensors.torch.save_file(state_dict, "
         "\"model.safetensors\")";
}

}  // namespace troupe
