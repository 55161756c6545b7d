#pragma once
#include <sys/types.h>

#include <cstdint>

namespace troupe {

/// Clock ticks since boot at which process `pid` started, 0 if there is none: with its number this identifies a process
/// for good.
std::uint64_t process_start(pid_t pid) noexcept;

/// Reports whether another process of this host still runs. A dead one that its parent has not collected (zombie) is
/// dead. One thread.
class ProcessWatch {
 public:
  ProcessWatch(pid_t pid, std::uint64_t start);
  ~ProcessWatch();
  ProcessWatch(ProcessWatch&& other) noexcept;
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  bool alive() const noexcept;
  pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_;
  std::uint64_t start_;
  int fd_ = -1;  // pidfd; -1 if the kernel or the container has none, then /proc is read
};

}  // namespace troupe
