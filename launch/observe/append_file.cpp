#include "launch/observe/append_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

[[noreturn]] void fail(const std::string& path, int error) {
  throw Error(ErrorCode::io, path, io_cause(error),
              error == ENOSPC || error == EDQUOT ? "free some space: later records are then written again"
                                                 : "choose another --run_dir");
}

}  // namespace

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

void AppendFile::open() {
  std::error_code failure;
  const auto folder = std::filesystem::path(path_).parent_path();
  refuse_foreign_link(folder.string());
  std::filesystem::create_directories(folder, failure);
  if (failure) fail(path_, failure.value());
  fd_ = open_plain(path_, O_WRONLY | O_APPEND | O_CREAT);
  if (fd_ < 0) fail(path_, errno);
}

void AppendFile::append(std::string_view record) {
  if (fd_ < 0) open();
  const auto whole = ::lseek(fd_, 0, SEEK_END);
  for (std::size_t written = 0; written < record.size();) {
    const auto n = ::write(fd_, record.data() + written, record.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = n < 0 ? errno : ENOSPC;
      if (whole >= 0) (void)!::ftruncate(fd_, whole);
      fail(path_, error);
    }
    written += static_cast<std::size_t>(n);
  }
}

std::string mend_and_read_tail(const std::string& path, std::int64_t bytes) {
  const int fd = open_plain(path, O_RDWR);
  if (fd < 0) return {};
  struct stat facts {};
  std::string tail;
  if (::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode)) {
    const auto from = std::max<std::int64_t>(0, facts.st_size - bytes);
    tail.resize(static_cast<std::size_t>(facts.st_size - from));
    const auto n = ::pread(fd, tail.data(), tail.size(), from);
    tail.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    const auto end = tail.rfind('\n');
    const auto whole = end == std::string::npos ? 0 : end + 1;
    if (whole < tail.size() && (whole > 0 || from == 0))
      (void)!::ftruncate(fd, from + static_cast<std::int64_t>(whole));
    tail.resize(whole);
    if (from > 0) tail.erase(0, tail.find('\n') + 1);
  }
  ::close(fd);
  return tail;
}

}  // namespace troupe
