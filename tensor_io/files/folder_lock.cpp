#include "tensor_io/files/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <mutex>

#include "tensor_io/base/error.hpp"
#include "tensor_io/files/file_layer.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kPause = 20ms;
constexpr auto kLastWriter = 300ms;  // two that find a file stale both sign it, and the last one has it

std::string own_name() {
  char host[HOST_NAME_MAX + 1] = "", since[32] = "";
  ::gethostname(host, HOST_NAME_MAX);
  const auto now = std::time(nullptr);
  tm local{};
  std::strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S", ::localtime_r(&now, &local));
  return "process " + std::to_string(::getpid()) + " on " + host + " since " + since;
}

// When the file was last touched, by the clock of its file system; -1: it is not there.
std::chrono::nanoseconds touched(const std::string& file) {
  struct stat facts {};
  if (::lstat(file.c_str(), &facts) != 0) return -1ns;
  return std::chrono::seconds(facts.st_mtim.tv_sec) + std::chrono::nanoseconds(facts.st_mtim.tv_nsec);
}

int opened(const std::string& target) {
  struct stat facts {};
  const bool is_folder = ::stat(target.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode);
  const int fd = is_folder ? ::open(target.c_str(), O_RDONLY | O_CLOEXEC) : open_plain(target, O_RDWR | O_CREAT);
  if (fd < 0) throw_io_error("locking the folder", target, errno);
  return fd;
}

bool leads_to(const std::string& path, int fd) {
  struct stat there {};
  struct stat ours {};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(fd, &ours) == 0 && there.st_dev == ours.st_dev &&
         there.st_ino == ours.st_ino;
}

}  // namespace

FolderLock::FolderLock(const std::string& target, const std::string& file, const std::string& folder,
                       const std::string& remedy, Options options)
    : file_(file), name_(own_name()), options_(options), fd_(opened(target)) {
  const auto deadline = std::chrono::steady_clock::now() + options_.patience;
  for (auto answer = lock(); answer != Answer::ours; answer = lock()) {
    if (answer == Answer::unknown && take_over()) {
      keep_touching();
      return;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      const auto who = signature();
      ::close(fd_);
      throw Error(ErrorCode::unavailable, folder,
                  (who.empty() ? "another job" : "another job (" + who + ")") + " is using this folder", remedy);
    }
    std::this_thread::sleep_for(kPause);
  }
}

FolderLock::~FolderLock() {
  if (beat_.joinable()) {
    beat_ = {};
    if (signature() == name_) ::unlink(file_.c_str());  // free at once
  }
  ::close(fd_);
}

bool FolderLock::is_at(const std::string& path) const { return leads_to(path, fd_); }

void refuse_moved(const std::string& folder) {
  throw Error(ErrorCode::io, "writing to the folder", folder + " was moved or removed while the job ran",
              "move it back, and the next save succeeds; or stop the job, and resume the folder by its new name");
}

HeldFolder::HeldFolder(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) throw_io_error("opening the folder", path, errno);
}

HeldFolder::~HeldFolder() { ::close(fd_); }

bool HeldFolder::is_at(const std::string& path) const { return leads_to(path, fd_); }

FolderLock::Answer FolderLock::lock() const {
  const auto flock = options_.flock == nullptr ? &::flock : options_.flock;
  while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Answer::held;
    if (errno != EINTR) return Answer::unknown;
  }
  return Answer::ours;
}

bool FolderLock::take_over() const {
  if (!is_stale()) return false;
  sign();
  std::this_thread::sleep_for(kLastWriter);
  return signature() == name_;
}

// A new file shows what time it is where the file system is.
bool FolderLock::is_stale() const {
  if (signature().empty()) return true;
  const auto now = file_ + "." + std::to_string(::getpid());
  const int fd = open_plain(now, O_WRONLY | O_CREAT | O_EXCL);
  if (fd < 0) throw_io_error("locking the folder", now, errno);
  const auto age = touched(now) - touched(file_);
  ::close(fd);
  ::unlink(now.c_str());
  return age >= options_.stale;
}

void FolderLock::sign() const {
  const int fd = open_plain(file_, O_WRONLY | O_CREAT | O_TRUNC);
  if (fd < 0) throw_io_error("signing the folder", file_, errno);
  const auto line = name_ + "\n";
  [[maybe_unused]] const auto written = ::write(fd, line.data(), line.size());
  ::close(fd);
}

std::string FolderLock::signature() const {
  const int fd = ::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return {};
  char text[512] = "";
  const auto n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  std::string line(text, n > 0 ? static_cast<std::size_t>(n) : 0);
  line.resize(std::min(line.size(), line.find('\n')));
  std::erase_if(line, [](char c) { return c < ' ' || c > '~'; });
  return line;
}

void FolderLock::keep_touching() {
  beat_ = std::jthread([file = file_, beat = options_.beat](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, stop, beat, [&] { return stop.stop_requested(); }))
      ::utimensat(AT_FDCWD, file.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  });
}

}  // namespace troupe
