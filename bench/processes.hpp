#pragma once
// Programs whose ranks are processes of this machine.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
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

/// The first of two: the coordinator listens on the port after the master's. 0 where none are found.
inline int free_ports() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int first = ::socket(AF_INET, SOCK_STREAM, 0), second = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const bool bound = ::bind(first, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                       ::getsockname(first, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    const int port = ntohs(address.sin_port);
    address.sin_port = htons(static_cast<std::uint16_t>(port + 1));
    const bool next_too = bound && ::bind(second, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(first);
    ::close(second);
    if (next_too) return port;
  }
  return 0;
}

/// This program again as `ranks` ranks of a job (RANK says which), and what wait_for says of them; 71 where one cannot
/// be started.
inline int start_ranks(char** argv, int ranks) {
  const auto port = std::to_string(free_ports());
  ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", port.c_str(), 1);
  ::setenv("TORCHELASTIC_RUN_ID", port.c_str(), 1);
  std::vector<pid_t> pids;
  for (int r = 0; r < ranks; ++r) {
    ::setenv("RANK", std::to_string(r).c_str(), 1);
    ::setenv("LOCAL_RANK", std::to_string(r).c_str(), 1);
    pids.push_back(start_rank(r, argv));
    if (pids.back() == 0) return 71;
  }
  return wait_for(pids);
}
