#include "tensor_io/files/file_layer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/bounded_file.hpp"

namespace troupe {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
constexpr std::size_t kDirectBytes = std::size_t{16} << 20;  // few requests, few waits: less processor time
constexpr std::size_t kSmallWrite = std::size_t{64} << 10;

std::string remedy_for(int errno_value) {
  switch (errno_value) {
    case ENOSPC: return "free some space, or lower keep_last";
    case EDQUOT: return "the disk quota is used up: free some space, or lower keep_last";
    case EFBIG: return "the file size limit (ulimit -f) is too low";
    case EROFS: return "the file system is mounted read only";
    case EACCES:
    case EPERM: return "the user that runs this needs write permission there";
    case ELOOP: return "remove it: others may write to that folder, and a link there could lead anywhere";
    case EIO: return "the disk is failing: look at the kernel's log";
    default: return {};
  }
}

}  // namespace

int FileLayer::create(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}
ssize_t FileLayer::write(int fd, const void* data, std::size_t bytes) { return ::write(fd, data, bytes); }
int FileLayer::sync(int fd) { return ::fsync(fd); }
int FileLayer::close(int fd) { return ::close(fd); }
int FileLayer::make_directory(const std::string& path) { return ::mkdir(path.c_str(), 0777); }

int FileLayer::sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  const int result = ::fsync(fd);
  const int why = errno;
  ::close(fd);
  errno = why;
  return result;
}

int FileLayer::rename(const std::string& from, const std::string& to) { return std::rename(from.c_str(), to.c_str()); }
int FileLayer::remove_file(const std::string& path) { return ::unlink(path.c_str()); }
int FileLayer::remove_directory(const std::string& path) { return ::rmdir(path.c_str()); }

FileLayer& real_files() noexcept {
  static FileLayer layer;
  return layer;
}

void replace_file(const std::string& path, FileLayer& files, const std::function<void(DurableFile&)>& write) {
  const auto folder = std::filesystem::path(path).parent_path();
  const std::string temporary = path + ".tmp-" + std::to_string(::getpid());
  try {
    DurableFile file(files, temporary);
    write(file);
    file.finish();
    if (files.rename(temporary, path) != 0) throw_io_error("renaming to", path, errno);
  } catch (...) {
    files.remove_file(temporary);
    throw;
  }
  if (files.sync_directory(folder.empty() ? "." : folder.string()) != 0)
    throw_io_error("syncing", folder.string(), errno);
}

void throw_io_error(const std::string& operation, const std::string& path, int errno_value) {
  throw Error(ErrorCode::io, operation + " " + path, io_cause(errno_value), remedy_for(errno_value));
}

std::string io_cause(int errno_value) {
  return errno_value == ELOOP ? "is a symbolic link, which is not followed"
                              : std::system_category().message(errno_value);
}

int open_plain(const std::string& path, int flags, unsigned mode) {
  const int fd = ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, mode);
  if (fd >= 0) [[maybe_unused]]
    const int done = ::fcntl(fd, F_SETFL, flags & O_APPEND);
  return fd;
}

bool is_there(const std::string& path, const std::string& setting) {
  std::error_code failure;
  const bool there = std::filesystem::exists(path, failure);
  if (failure)
    throw Error(ErrorCode::io, setting, printable(path) + " cannot be read: " + failure.message(), "name another path");
  return there;
}

bool is_folder(const std::string& path, const std::string& setting) {
  std::error_code failure;
  return is_there(path, setting) && std::filesystem::is_directory(path, failure);
}

void replace_text(const std::string& path, std::string_view text) {
  replace_file(path, real_files(),
               [text](DurableFile& file) { file.append(std::as_bytes(std::span(text.data(), text.size()))); });
}

void refuse_foreign_link(const std::string& folder) {
  struct stat facts {};
  auto name = folder;
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();  // with it, the link would be followed
  if (::lstat(name.c_str(), &facts) != 0 || !S_ISLNK(facts.st_mode)) return;
  if (facts.st_uid == ::geteuid() || facts.st_uid == 0) return;
  throw Error(ErrorCode::io, name,
              "is a symbolic link of another user's (uid " + std::to_string(facts.st_uid) + "), which is not followed",
              "remove it, or choose another folder");
}

DurableFile::DurableFile(FileLayer& files, std::string path)
    : files_(files), path_(std::move(path)), fd_(files.create(path_)), buffer_(nullptr, &std::free) {
  if (fd_ < 0) throw_io_error("creating", path_, errno);
  buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, kBufferBytes)));
  if (!buffer_) throw_io_error("creating", path_, ENOMEM);
  const int flags = ::fcntl(fd_, F_GETFL);
  direct_ = flags >= 0 && ::fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0;
}

DurableFile::~DurableFile() {
  if (fd_ >= 0) files_.close(fd_);
}

bool DurableFile::go_through_cache() noexcept {
  if (!std::exchange(direct_, false)) return false;
  const int flags = ::fcntl(fd_, F_GETFL);
  return flags >= 0 && ::fcntl(fd_, F_SETFL, flags & ~O_DIRECT) == 0;
}

void DurableFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const bool whole_pages = bytes.size() >= kPage && reinterpret_cast<std::uintptr_t>(bytes.data()) % kPage == 0;
    if (buffered_ == 0 && (whole_pages || (!direct_ && bytes.size() >= kSmallWrite))) {
      // Through the cache, in pieces that are still there when they are written.
      const auto piece = direct_ ? bytes.first(std::min(bytes.size() / kPage * kPage, kDirectBytes))
                                 : bytes.first(std::min(bytes.size(), kBufferBytes));
      digest_.update(piece);
      write_out(piece);
      bytes = bytes.subspan(piece.size());
      continue;
    }
    const auto piece = bytes.first(std::min(bytes.size(), kBufferBytes - buffered_));
    std::memcpy(buffer_.get() + buffered_, piece.data(), piece.size());
    digest_.update({buffer_.get() + buffered_, piece.size()});
    buffered_ += piece.size();
    bytes = bytes.subspan(piece.size());
    // At a page's end what follows may go without a copy.
    if (buffered_ == kBufferBytes || (buffered_ % kPage == 0 && bytes.size() >= kSmallWrite)) flush();
  }
}

void DurableFile::flush() {
  write_out({buffer_.get(), buffered_});
  buffered_ = 0;
}

void DurableFile::write_out(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = files_.write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL && go_through_cache())
      continue;  // after a short write, or where pages are larger
    if (written < 0) throw_io_error("writing", path_, errno);
    if (written == 0) throw_io_error("writing", path_, ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

FileDigest DurableFile::finish() {
  if (buffered_ % kPage != 0) go_through_cache();
  flush();
  if (files_.sync(fd_) != 0) throw_io_error("syncing", path_, errno);
  const int fd = std::exchange(fd_, -1);
  if (files_.close(fd) != 0) throw_io_error("closing", path_, errno);
  return digest_.finish();
}

std::set<std::string> names_in(const std::string& folder) {
  namespace fs = std::filesystem;
  std::set<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    names.insert(entry->path().filename().string());
  if (error) throw_io_error("listing", folder, error.value());
  return names;
}

void remove_tree(FileLayer& files, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() != fs::file_type::directory) {
    if (files.remove_file(path) != 0 && errno != ENOENT) throw_io_error("removing", path, errno);
    return;
  }
  // Listed first: removing while listing may skip some.
  for (const auto& name : names_in(path)) remove_tree(files, path + "/" + name);
  if (files.remove_directory(path) != 0 && errno != ENOENT) throw_io_error("removing", path, errno);
}

}  // namespace troupe
