#pragma once
#include <algorithm>
#include <memory>

#include "tests/catch.hpp"
#include "tests/support/proc_file.hpp"
#include "tests/support/running_process.hpp"
#include "tests/support/scratch_directory.hpp"

namespace troupe::testing {

using Clock = std::chrono::steady_clock;

/// A `troupe launch` of the probe as a user types it. Several may share a folder, one after the other.
class Launch {
 public:
  Launch(int nproc, const std::vector<std::string>& arguments,
         const std::vector<std::string>& launch_flags = {"--no-recovery"},
         const std::map<std::string, std::string>& environment = {},
         std::shared_ptr<ScratchDirectory> folder = std::make_shared<ScratchDirectory>())
      : folder_(std::move(folder)), process_(command(nproc, arguments, launch_flags), environment) {}
  pid_t pid() const { return process_.pid(); }
  void signal(int number) { process_.signal(number); }
  const ScratchDirectory& folder() const { return *folder_; }
  const std::shared_ptr<ScratchDirectory>& shared_folder() const { return folder_; }
  bool wait_for(const std::string& text) { return process_.wait_for(text); }
  bool wait_until(const std::function<bool()>& happened) { return process_.wait_until(happened); }
  bool wait_for_file(const std::string& name) {
    return process_.wait_until([&] { return std::filesystem::exists(folder() / name); });
  }
  /// Reads on for so long.
  void pass(std::chrono::milliseconds time) {
    process_.wait_until([until = Clock::now() + time] { return Clock::now() >= until; });
  }
  const std::string& output() const { return process_.output(); }
  Finished finish() {
    auto finished = process_.finish();
    REQUIRE(finished.code >= 0);
    return finished;
  }

 private:
  std::vector<std::string> command(int nproc, const std::vector<std::string>& arguments,
                                   const std::vector<std::string>& launch_flags) {
    std::vector<std::string> all{TROUPE_PROGRAM, "launch", "--nproc", std::to_string(nproc)};
    const auto own = std::find(arguments.begin(), arguments.end(), "--run_dir");
    if (own == arguments.end() || std::next(own)->empty())
      all.insert(all.end(), {"--run-dir", folder() / "run"});  // it would win over the program's
    all.insert(all.end(), launch_flags.begin(), launch_flags.end());
    for (const std::string word : {TROUPE_RANK_PROBE, "--batch_size", "16", "--checkpoint_dir"}) all.push_back(word);
    all.push_back(folder() / "checkpoints");
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }

  std::shared_ptr<ScratchDirectory> folder_;
  RunningProcess process_;
};

// The child of `parent` whose command line has both words; -1: none.
inline pid_t process_of(const std::string& program, const std::string& verb, pid_t parent) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto line = proc_file(entry.path() / "cmdline"), facts = proc_file(entry.path() / "status");
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
