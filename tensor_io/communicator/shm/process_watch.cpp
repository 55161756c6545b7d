#include "tensor_io/communicator/shm/process_watch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace troupe {
namespace {

struct ProcessStatus {
  char state = '\0';
  std::uint64_t start = 0;
};

ProcessStatus read_status(pid_t pid) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char text[1024];
  const ssize_t length = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (length <= 0) return {};
  text[length] = '\0';
  const char* after_name = std::strrchr(text, ')');  // the name may hold spaces and parentheses
  if (after_name == nullptr) return {};
  ProcessStatus status;
  unsigned long long start = 0;
  // state, then 18 fields, then the start time: proc(5), fields 3 and 22
  if (std::sscanf(after_name + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                  &status.state, &start) == 2) {
    status.start = start;
  }
  return status;
}

int open_process([[maybe_unused]] pid_t pid) noexcept {  // -1 where the kernel cannot
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
#else
  return -1;
#endif
}

}  // namespace

std::uint64_t process_start(pid_t pid) noexcept { return read_status(pid).start; }

ProcessWatch::ProcessWatch(pid_t pid, std::uint64_t start) : pid_(pid), start_(start), fd_(open_process(pid)) {
  if (fd_ >= 0 && process_start(pid) != start) {  // the number was given to another process before we came
    ::close(fd_);
    fd_ = -1;
  }
}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) ::close(fd_);
}

ProcessWatch::ProcessWatch(ProcessWatch&& other) noexcept
    : pid_(other.pid_), start_(other.start_), fd_(std::exchange(other.fd_, -1)) {}

bool ProcessWatch::alive() const noexcept {
  if (fd_ >= 0) {
    pollfd entry{fd_, POLLIN, 0};
    return ::poll(&entry, 1, 0) <= 0;
  }
  const auto status = read_status(pid_);
  return status.start == start_ && status.state != 'Z' && status.state != 'X';
}

}  // namespace troupe
