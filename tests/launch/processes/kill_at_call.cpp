// LD_PRELOAD: a SIGKILL at one of the calls of the operating system that change files. KILL_AT_CALL counts them from 1;
// the process dies before that call, or, where it is a write and KILL_HALFWAY is set, after the first half of its
// bytes. The program knows nothing of it, so what is left on the disk is what a kill leaves, whatever way the program
// writes.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdlib>

namespace {

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

bool is_due() {
  static std::atomic<long> calls{0};
  const char* at = std::getenv("KILL_AT_CALL");
  return at != nullptr && ++calls == std::atol(at);
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

template <class... Arguments>
int change(const char* name, Arguments... arguments) {
  if (is_due()) die();
  return next<int (*)(Arguments...)>(name)(arguments...);
}

template <class... More>
ssize_t put(const char* name, int fd, const void* data, std::size_t bytes, More... more) {
  const auto call = next<ssize_t (*)(int, const void*, std::size_t, More...)>(name);
  if (is_due()) {
    if (std::getenv("KILL_HALFWAY") != nullptr) (void)call(fd, data, bytes / 2, more...);
    die();
  }
  return call(fd, data, bytes, more...);
}

}  // namespace

extern "C" {

// NOLINTBEGIN(cert-dcl50-cpp): so they are declared
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if ((flags & (O_CREAT | O_TRUNC)) != 0 && is_due()) die();
  return next<int (*)(const char*, int, ...)>("open")(path, flags, mode);
}
int open64(const char*, int, ...) __attribute__((alias("open")));  // one and the same where off_t has 64 bits
// NOLINTEND(cert-dcl50-cpp)
ssize_t write(int fd, const void* data, size_t bytes) { return put("write", fd, data, bytes); }
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) { return put("pwrite", fd, data, bytes, offset); }
ssize_t pwrite64(int, const void*, size_t, off64_t) __attribute__((alias("pwrite")));
int fsync(int fd) { return change("fsync", fd); }
int fdatasync(int fd) { return change("fdatasync", fd); }
int ftruncate(int fd, off_t length) noexcept { return change("ftruncate", fd, length); }
int rename(const char* from, const char* to) noexcept { return change("rename", from, to); }
int mkdir(const char* path, mode_t mode) noexcept { return change("mkdir", path, mode); }
int unlink(const char* path) noexcept { return change("unlink", path); }
int rmdir(const char* path) noexcept { return change("rmdir", path); }
}
