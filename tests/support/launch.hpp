#pragma once
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launch/child_process.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

namespace troupe::testing {

using Clock = std::chrono::steady_clock;

struct Finished {
  std::string output;  // both streams
  int code = -1;
};

// A `troupe launch` as a user types it.
class Launch {
 public:
  Launch(int nproc, const std::vector<std::string>& arguments, const std::vector<std::string>& launch_flags = {"--no-recovery"},
         const std::map<std::string, std::string>& environment = {}) {
    ChildProcess::Options options;
    options.environment = environment;
    options.arguments = {TROUPE_PROGRAM, "launch", "--nproc", std::to_string(nproc), "--run-dir", folder_ / "run"};
    options.arguments.insert(options.arguments.end(), launch_flags.begin(), launch_flags.end());
    for (const std::string word : {TROUPE_RANK_PROBE, "--batch_size", "16", "--checkpoint_dir"}) options.arguments.push_back(word);
    options.arguments.push_back(folder_ / "checkpoints");
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    child_.emplace(options);
  }
  const std::string& output() const { return output_; }
  pid_t pid() const { return child_->pid(); }
  void signal(int number) { ::kill(child_->pid(), number); }
  const ScratchDirectory& folder() const { return folder_; }

  // Reads until `text` was printed, or the process ended, or 60 s are over.
  bool wait_for(const std::string& text) {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (output_.find(text) == std::string::npos && Clock::now() < deadline) {
      if (!read_some()) return output_.find(text) != std::string::npos;
    }
    return output_.find(text) != std::string::npos;
  }
  Finished finish() {
    const auto deadline = Clock::now() + std::chrono::seconds(90);
    while (read_some() && Clock::now() < deadline) {
    }
    while (!child_->poll_exit() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE(child_->ended());
    return {output_, exit_code_of_wait_status(*child_->poll_exit())};
  }

 private:
  bool read_some() {
    pollfd fds[2] = {{child_->stdout_fd(), POLLIN, 0}, {child_->stderr_fd(), POLLIN, 0}};
    if (fds[0].fd < 0 && fds[1].fd < 0) return false;
    ::poll(fds, 2, 100);
    for (int i = 0; i < 2; ++i) {
      char block[4096];
      const auto n = fds[i].fd < 0 ? -1 : ::read(fds[i].fd, block, sizeof block);
      if (n > 0) output_.append(block, static_cast<std::size_t>(n));
      if (n == 0) i == 0 ? child_->close_stdout() : child_->close_stderr();
    }
    return true;
  }

  ScratchDirectory folder_;
  std::optional<ChildProcess> child_;
  std::string output_;
};

// Processes whose command line names the folder: the ranks of that launch.
inline int processes_of(const std::string& folder) {
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (line.find(folder) != std::string::npos) ++n;
  }
  return n;
}

// The child of `parent` whose command line has both words; -1: none.
inline pid_t process_of(const std::string& program, const std::string& verb, pid_t parent) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline"), status(entry.path() / "status");
    const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const std::string facts((std::istreambuf_iterator<char>(status)), std::istreambuf_iterator<char>());
    if (line.find(program) != std::string::npos && line.find(verb) != std::string::npos &&
        facts.find("PPid:\t" + std::to_string(parent) + "\n") != std::string::npos)
      return std::stoi(entry.path().filename().string());
  }
  return -1;
}

// The number after the last `text`.
inline pid_t pid_said_by(const std::string& output, const std::string& text) {
  const auto at = output.rfind(text);
  return at == std::string::npos ? -1 : std::stoi(output.substr(at + text.size()));
}

}  // namespace troupe::testing
