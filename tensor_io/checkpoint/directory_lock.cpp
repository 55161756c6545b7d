#include "tensor_io/checkpoint/directory_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/bounded_file.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {

using namespace std::chrono_literals;

namespace {

constexpr auto kDeadline = 5s;

}  // namespace

DirectoryLock::DirectoryLock(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw_io_error("creating the checkpoint directory", directory, error.value());
  fd_ = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) throw_io_error("opening the checkpoint directory", directory, errno);
  // A rank that was killed a moment ago may still hold the lock.
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;  // a file system without locks
    if (std::chrono::steady_clock::now() > deadline) {
      ::close(fd_);
      throw Error(ErrorCode::unavailable, "writing checkpoints to " + directory,
                  "another job writes its checkpoints there", "give each job a checkpoint_dir of its own");
    }
    std::this_thread::sleep_for(20ms);
  }
}

DirectoryLock::~DirectoryLock() { ::close(fd_); }

}  // namespace troupe
