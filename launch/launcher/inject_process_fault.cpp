#include "launch/launcher/inject_process_fault.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

namespace troupe {
namespace {

constexpr std::int64_t kTurnMs = 50;

void sleep_ms(std::int64_t ms) {
  timespec left{ms / 1000, ms % 1000 * 1'000'000};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// In a child of a process with threads: nothing but system calls. It ends with its parent.
[[noreturn]] void stop_and_continue(pid_t parent, bool in_turns, std::int64_t lasts_ms) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Else it would keep connections of a parent that is killed meanwhile, and its output, open.
  syscall(SYS_close_range, 0, ~0U, 0);
  const std::int64_t turn = in_turns ? kTurnMs : lasts_ms;
  for (std::int64_t spent = 0; spent < lasts_ms && getppid() == parent; spent += in_turns ? 2 * turn : turn) {
    kill(parent, SIGSTOP);
    sleep_ms(turn);
    if (getppid() == parent) kill(parent, SIGCONT);
    if (in_turns) sleep_ms(turn);
  }
  _exit(0);
}

}  // namespace

void hurt_this_process(ChaosKind kind, std::chrono::milliseconds lasts) {
  const auto self = getpid();
  if (kind == ChaosKind::kill) kill(self, SIGKILL);
  if (kind != ChaosKind::stop && kind != ChaosKind::slow) return;
  const auto child = fork();
  if (child == 0) stop_and_continue(self, kind == ChaosKind::slow, lasts.count());
  if (child < 0) {
    std::fprintf(stderr, "warning: --chaos could not stop this rank: fork: %s\n", std::strerror(errno));
    return;
  }
  std::thread([child] { waitpid(child, nullptr, 0); }).detach();
}

}  // namespace troupe
