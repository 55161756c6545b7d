#pragma once
// Programs whose ranks are processes of this machine.
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

/// Rank r on the r-th core, from the first again where there are more ranks.
inline void pin_to_core(int rank) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(rank % static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))), &cores);
  sched_setaffinity(0, sizeof cores, &cores);
}

/// This program again, with these arguments; rank 0 alone has the standard input. 0 where it cannot be started.
inline pid_t start_rank(int rank, char** arguments) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (rank > 0) posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  return failed == 0 ? pid : 0;
}

/// The worst exit code; 70 for one that a signal ended.
inline int wait_for(const std::vector<pid_t>& ranks) {
  int worst = 0;
  for (const auto pid : ranks) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 70);
  }
  return worst;
}
