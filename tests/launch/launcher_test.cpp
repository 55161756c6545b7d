#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "launch/child_process.hpp"
#include "launch/output_lines.hpp"
#include "tests/catch.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using Clock = std::chrono::steady_clock;

namespace {

struct Finished {
  std::string output;  // both streams
  int code = -1;
};

// A `troupe launch` as a user types it.
class Launch {
 public:
  Launch(int nproc, const std::vector<std::string>& arguments) {
    ChildProcess::Options options;
    options.arguments = {
        TROUPE_PROGRAM, "launch", "--nproc",          std::to_string(nproc),  "--run-dir", folder_ / "run", TROUPE_RANK_PROBE,
        "--batch_size", "16",     "--checkpoint_dir", folder_ / "checkpoints"};
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    child_.emplace(options);
  }
  pid_t pid() const { return child_->pid(); }
  void signal(int number) { ::kill(child_->pid(), number); }
  const testing::ScratchDirectory& folder() const { return folder_; }

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

  testing::ScratchDirectory folder_;
  std::optional<ChildProcess> child_;
  std::string output_;
};

// Processes whose command line names the folder: the ranks of that launch.
int processes_of(const std::string& folder) {
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (line.find(folder) != std::string::npos) ++n;
  }
  return n;
}

}  // namespace

TEST_CASE("[L01] troupe launch trains on two processes, marks lines with the rank and keeps each rank's log") {
  Launch launch(2, {"--epochs", "2"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output,
             Catch::Contains("[rank 0] epoch 1/2") && Catch::Contains("2 ranks, backend shm") && Catch::Contains("step-00000032"));
  CHECK_THAT(testing::read_text(launch.folder() / "run/rank0.log"), Catch::Contains("epoch 2/2"));
  CHECK(std::filesystem::exists(launch.folder() / "run/rank1.log"));
  CHECK(done.output.find('\x1b') == std::string::npos);  // no escape codes in a pipe
}

TEST_CASE("[T06] an exception on one rank ends the job with its text, rank and step, and the exit code of that rank") {
  Launch launch(2, {"--fail_rank", "1"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 1);
  CHECK_THAT(done.output, Catch::Contains("[rank 1] error: rank 1, compute, step 3: the probe was told to throw") &&
                              Catch::Contains("troupe: rank 1 failed: exit code 1"));
  CHECK(processes_of(launch.folder().path()) == 0);
}

TEST_CASE("[T06] a rank that is killed ends the job, and the signal is named") {
  Launch launch(2, {"--fail_rank", "1", "--fail_how", "kill"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 137);
  CHECK_THAT(done.output, Catch::Contains("rank 1 failed: signal 9 (Killed)"));
}

TEST_CASE("[T06] a rank that exits early ends the job with its exit code") {
  Launch launch(2, {"--fail_rank", "0", "--fail_how", "exit"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 7);
}

TEST_CASE("[T06] Ctrl-C finishes the step, writes a checkpoint and exits 130, and 143 on SIGTERM") {
  const int number = GENERATE(SIGINT, SIGTERM);
  Launch launch(2, {"--epochs", "100000", "--pause_ms", "2"});
  REQUIRE(launch.wait_for("step 10/"));
  launch.signal(number);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 128 + number);
  CHECK_THAT(done.output, Catch::Contains("checkpoint: ") && Catch::Contains("--resume latest"));
  CHECK(std::filesystem::exists(launch.folder() / "checkpoints/latest"));
  CHECK(processes_of(launch.folder().path()) == 0);
}

TEST_CASE("[T06] a launcher that is killed leaves no orphan") {
  Launch launch(2, {"--epochs", "100000", "--pause_ms", "2"});
  REQUIRE(launch.wait_for("step 10/"));
  launch.signal(SIGKILL);
  (void)launch.finish();
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (processes_of(launch.folder().path()) > 0 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(processes_of(launch.folder().path()) == 0);
}

TEST_CASE("[L01] wrong use of the launcher is one line and starts nothing") {
  const auto [arguments, code, text] = GENERATE(table<std::vector<std::string>, int, std::string>({
      {{"launch", "--nproc", "0", "x"}, 2, "'0' is no whole number from 1"},
      {{"launch", "--nporc", "2", "x"}, 2, "did you mean --nproc?"},
      {{"launch", "--nproc", "2"}, 2, "which program?"},
      {{"launch", "/nowhere/at/all"}, 69, "there is no such program"},
      {{"launch", "/etc/passwd"}, 69, "no executable file"},
      {{"lunch"}, 2, "did you mean launch?"},
  }));
  ChildProcess::Options options;
  options.arguments = {TROUPE_PROGRAM};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  ChildProcess child(options);
  int status = 0;
  while (!child.poll_exit()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  status = *child.poll_exit();
  char block[4096];
  const auto n = ::read(child.stderr_fd(), block, sizeof block);
  const std::string said(block, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  CHECK(exit_code_of_wait_status(status) == code);
  CHECK_THAT(said, Catch::Contains(text));
  CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

TEST_CASE("output is cut into whole lines, however it arrives") {
  OutputLines lines;
  std::vector<std::pair<std::string, bool>> seen;
  const auto collect = [&](std::string_view text, bool overwrite) { seen.emplace_back(text, overwrite); };
  lines.feed("one\ntw", collect);
  lines.feed("o\r50%\r\nlast", collect);
  lines.finish(collect);
  CHECK((seen == std::vector<std::pair<std::string, bool>>{{"one", false}, {"two", true}, {"50%", true}, {"", false}, {"last", false}}));
}
