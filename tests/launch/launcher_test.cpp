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
#include "tests/support/launch.hpp"

using namespace troupe;
using testing::Clock;
using testing::Launch;
using testing::processes_of;

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
