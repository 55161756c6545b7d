#pragma once
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "launch/process/child_process.hpp"
#include "tests/support/proc_file.hpp"

namespace troupe::testing {

struct Finished {
  std::string output;  // both streams
  int code = -1;       // as a shell has it; -1: it had to be killed
};

/// A program as a user starts it, and what it has printed so far.
class RunningProcess {
 public:
  explicit RunningProcess(const std::vector<std::string>& arguments,
                          const std::map<std::string, std::string>& environment = {})
      : child_(ChildProcess::Options{arguments, environment, false}) {}
  pid_t pid() const { return child_.pid(); }
  const std::string& output() const { return output_; }
  void signal(int number) { ::kill(child_.pid(), number); }

  /// Reads until `happened`, or the process ended its output, or 60 s are over. Says whether it happened.
  bool wait_until(const std::function<bool()>& happened) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!happened() && std::chrono::steady_clock::now() < deadline) {
      if (!read_some()) break;
    }
    return happened();
  }
  bool wait_for(const std::string& text) {
    return wait_until([&] { return output_.find(text) != std::string::npos; });
  }
  Finished finish(std::chrono::seconds limit = std::chrono::seconds(90)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (read_some() && std::chrono::steady_clock::now() < deadline) {
    }
    while (!child_.poll_exit() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return {output_, child_.ended() ? exit_code_of_wait_status(*child_.poll_exit()) : -1};
  }

 private:
  bool read_some() {
    pollfd fds[2] = {{child_.stdout_fd(), POLLIN, 0}, {child_.stderr_fd(), POLLIN, 0}};
    if (fds[0].fd < 0 && fds[1].fd < 0) return false;
    ::poll(fds, 2, 100);
    for (int i = 0; i < 2; ++i) {
      char block[4096];
      const auto n = fds[i].fd < 0 ? -1 : ::read(fds[i].fd, block, sizeof block);
      if (n > 0) output_.append(block, static_cast<std::size_t>(n));
      if (n == 0) i == 0 ? child_.close_stdout() : child_.close_stderr();
    }
    return true;
  }

  ChildProcess child_;
  std::string output_;
};

/// Processes whose command line names the folder.
inline std::vector<pid_t> processes_of(const std::string& folder) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (proc_file(entry.path() / "cmdline").find(folder) != std::string::npos)
      found.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

}  // namespace troupe::testing
