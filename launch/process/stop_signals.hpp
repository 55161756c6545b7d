#pragma once
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tensor_io/base/error.hpp"

namespace troupe {

/// SIGINT, SIGTERM, SIGHUP and SIGCHLD as a file to poll.
class StopSignals {
 public:
  StopSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, nullptr);  // before any thread is made: they inherit it
    ::signal(SIGPIPE, SIG_IGN);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) throw Error(ErrorCode::unavailable, "signalfd", std::strerror(errno));
  }
  ~StopSignals() { ::close(fd_); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  int fd() const noexcept { return fd_; }
  /// The next signal that asks for an end; 0: none.
  int take() const {
    signalfd_siginfo info;
    while (::read(fd_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo != SIGCHLD) return static_cast<int>(info.ssi_signo);
    }
    return 0;
  }

 private:
  int fd_ = -1;
};

}  // namespace troupe
