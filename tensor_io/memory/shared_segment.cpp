#include "tensor_io/memory/shared_segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

// Nobody can shrink the file under another's feet (SIGBUS), nor put another length behind the one that was checked.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void fail(const std::string& operation, int error, const std::string& remedy = {}) {
  throw Error(ErrorCode::unavailable, operation, std::strerror(error), remedy);
}

}  // namespace

SharedSegment::SharedSegment(int fd, std::size_t bytes) : fd_(fd), bytes_(bytes) {
  struct stat status {};
  if (fstat(fd_, &status) == 0) inode_ = status.st_ino;
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  const int error = errno;
  if (mapped == MAP_FAILED) {
    close_descriptor();
    fail("mapping " + std::to_string(bytes_) + " bytes of shared memory", error);
  }
  data_ = static_cast<std::byte*>(mapped);
}

SharedSegment::~SharedSegment() {
  munmap(data_, bytes_);
  close_descriptor();
}

std::shared_ptr<SharedSegment> SharedSegment::create(std::size_t bytes, bool reserve) {
  const std::string operation = "creating " + std::to_string(bytes) + " bytes of shared memory";
  const int fd = memfd_create("troupe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail(operation, errno);
  int error = ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (error == 0 && reserve) {
    do {
      error = fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == EOPNOTSUPP) error = 0;
  }
  if (error == 0 && fcntl(fd, F_ADD_SEALS, kSeals) != 0) error = errno;
  if (error != 0) {
    ::close(fd);
    fail(operation, error, "check that the machine's memory and the container's memory limit are not used up");
  }
  return std::shared_ptr<SharedSegment>(new SharedSegment(fd, bytes));
}

std::shared_ptr<SharedSegment> SharedSegment::open(pid_t pid, int fd, std::uint64_t inode, std::size_t bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int own = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (own < 0) {
    fail("opening " + path, errno,
         errno == EMFILE ? "raise the limit of open files (ulimit -n)"
                         : "run the processes as one user and in one process namespace");
  }
  struct stat status {};
  const bool is_ours = fstat(own, &status) == 0 && S_ISREG(status.st_mode) && status.st_ino == inode &&
                       static_cast<std::size_t>(status.st_size) == bytes && fcntl(own, F_GET_SEALS) == kSeals;
  if (!is_ours) {
    ::close(own);
    throw Error(ErrorCode::unavailable, "opening " + path, "it is not the memory that was announced",
                "run the processes on one host and in one process namespace, or use backend = gloo");
  }
  auto segment = std::shared_ptr<SharedSegment>(new SharedSegment(own, bytes));
  segment->close_descriptor();
  return segment;
}

bool SharedSegment::holds(const void* pointer, std::size_t length) const noexcept {
  const auto* at = static_cast<const std::byte*>(pointer);
  return at >= data_ && at + length <= data_ + bytes_;
}

void SharedSegment::close_descriptor() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void SharedSegment::release_pages() noexcept { madvise(data_, bytes_, MADV_REMOVE); }

}  // namespace troupe
