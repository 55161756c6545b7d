// Jobs without a terminal: launch --detach, ps, attach.
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "launch/jobs/job_log.hpp"
#include "tests/support/launch.hpp"

using namespace troupe;
using testing::Finished;
using testing::Launch;
using testing::RunningProcess;

namespace {

// More than a test takes; a job that a broken test leaves behind comes to its end.
const std::vector<std::string> kLong = {"--epochs", "5000", "--pause_ms", "5", "--log_interval", "5"};

Finished attach(const std::filesystem::path& run) {
  return RunningProcess({TROUPE_PROGRAM, "attach", run.string()}).finish();
}

// The line of `troupe ps` about this run.
std::string listed(const std::filesystem::path& run) {
  std::istringstream lines(RunningProcess({TROUPE_PROGRAM, "ps"}).finish().output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(run.string() + " ") != std::string::npos) return line;
  }
  return {};
}

}  // namespace

TEST_CASE(
    "[K06] [L04] a detached job outlives its terminal, is listed, shown again and left alone, and stopped with a "
    "save") {
  Launch launch(2, kLong, {"--detach"});
  const auto run = std::filesystem::path(launch.folder() / "run");
  const auto begun = launch.finish();
  INFO(begun.output);
  CHECK(begun.code == 0);
  CHECK_THAT(begun.output, Catch::Contains("[rank 1] pid") && Catch::Contains("goes on without this terminal") &&
                               Catch::Contains("troupe attach " + run.string()));
  CHECK_THAT(listed(run), Catch::Contains(" 2 ") && Catch::Contains("troupe launch --nproc 2"));
  struct stat log {};
  REQUIRE(::stat(job_log_of(run.string()).c_str(), &log) == 0);
  CHECK((log.st_mode & 0777) == 0600);

  RunningProcess first({TROUPE_PROGRAM, "attach", run.string()});
  CHECK(first.wait_for("step "));  // one of the last lines
  first.signal(SIGTERM);
  const auto left = first.finish();
  CHECK(left.code == 0);
  CHECK_THAT(left.output, Catch::Contains("the job goes on"));
  CHECK(!listed(run).empty());

  RunningProcess second({TROUPE_PROGRAM, "attach", "--lines", "1", run.string()});
  CHECK(second.wait_for("step "));
  second.signal(SIGINT);
  const auto stopped = second.finish();
  INFO(stopped.output);
  CHECK(stopped.code == 130);
  CHECK_THAT(stopped.output, Catch::Contains("finishes its step and writes a checkpoint") &&
                                 Catch::Contains("ended with exit code 130"));
  CHECK(std::filesystem::exists(launch.folder() / "checkpoints"));
  CHECK(listed(run).empty());
  CHECK(testing::processes_of(run.string()).empty());

  const auto after = attach(run);
  CHECK(after.code == 130);
  CHECK_THAT(after.output, Catch::Contains("stopped by a signal"));
}

TEST_CASE("[K06] troupe ps counts the ranks that are left") {
  Launch launch(2, kLong, {"--max-restarts", "0"}, {{"TROUPE_FAULT", "slot=1,step=5,at=forward"}});
  const auto run = std::filesystem::path(launch.folder() / "run");
  const auto ranks = [&] {
    std::istringstream columns(listed(run));
    std::string folder, process, day, time, number;
    columns >> folder >> process >> day >> time >> number;
    return number;
  };
  CHECK(launch.wait_until([&] { return ranks() == "1"; }));
  launch.signal(SIGINT);
  CHECK(launch.finish().code == 130);
}

TEST_CASE("[K06] [L04] a detached job that does not begin ends as one that has a terminal") {
  Launch mistake(2, {"--epohs", "3"}, {"--detach"});
  const auto refused = mistake.finish();
  CHECK(refused.code == 2);
  CHECK_THAT(refused.output, Catch::Contains("did you mean epochs?"));

  // As a background job of a script starts it.
  auto folder = std::make_shared<testing::ScratchDirectory>();
  const auto run = std::filesystem::path(*folder / "run");
  std::vector<std::string> words = {"/bin/sh",      "-c",         R"(trap '' INT HUP; exec "$0" "$@")",
                                    TROUPE_PROGRAM, "launch",     "--detach",
                                    "--run-dir",    run.string(), TROUPE_RANK_PROBE,
                                    "--batch_size", "16"};
  words.insert(words.end(), kLong.begin(), kLong.end());
  REQUIRE(RunningProcess(words).finish().code == 0);
  Launch other(1, kLong, {"--detach"}, {}, folder);
  const auto second = other.finish();
  CHECK(second.code == 69);
  CHECK_THAT(second.output, Catch::Contains("is using this folder"));
  CHECK(!listed(run).empty());  // the first one does not mind
  RunningProcess stop({TROUPE_PROGRAM, "attach", run.string()});
  REQUIRE(stop.wait_for("[rank 0]"));
  stop.signal(SIGINT);
  CHECK(stop.finish().code == 130);
}

TEST_CASE("[K06] [L04] what can't be detached or attached to is named, with the way on") {
  const auto node = RunningProcess({TROUPE_PROGRAM, "launch", "--detach", "--nnodes", "2", TROUPE_RANK_PROBE}).finish();
  CHECK(node.code == 2);
  CHECK_THAT(node.output, Catch::Contains("--detach: each node of --nnodes has its own command"));
  testing::ScratchDirectory folder;
  const auto nothing = attach(folder / "none");
  CHECK(nothing.code == 69);
  CHECK_THAT(nothing.output,
             Catch::Contains("no job of yours on this host has this folder; see troupe ps for your jobs"));

  Launch plain(1, kLong);
  REQUIRE(plain.wait_for("step 5/"));
  const auto run = std::filesystem::path(plain.folder() / "run");
  CHECK(!listed(run).empty());
  const auto terminal = attach(run);
  CHECK(terminal.code == 2);
  CHECK_THAT(terminal.output,
             Catch::Contains("prints to the terminal that it was started in; follow it with troupe top"));
  plain.signal(SIGINT);
  CHECK(plain.finish().code == 130);
}

TEST_CASE("[K06] [L04] a job's log is shown from its last lines on, and ends with the exit code") {
  testing::ScratchDirectory folder;
  const std::string path = folder / "launch.log";
  const auto write = [&](const std::string& text) { std::ofstream(path, std::ios::app) << text; };
  write("one\ntwo\nthree\n");
  CHECK_FALSE(JobLog::last_lines(path, 2).exit_code());
  auto log = JobLog(path, 0);
  log.show_new();
  CHECK_FALSE(log.exit_code());
  write(end_line(75));
  log.show_new();
  CHECK_FALSE(log.exit_code());  // the line is not whole
  write("\n");
  log.show_new();
  CHECK(log.exit_code() == std::optional(75));
  write("[rank 0] troupe: ended with exit code 3\n");  // what a program prints is no end
  log.show_new();
  CHECK_FALSE(log.exit_code());
}

TEST_CASE("[K06] [L04] attach takes no link, pipe or escape for a job's output") {
  testing::ScratchDirectory folder;
  const std::string log = job_log_of(folder.path());
  REQUIRE(::mkfifo(log.c_str(), 0600) == 0);
  const auto pipe = attach(folder.path());
  INFO(pipe.output);
  CHECK(pipe.code == 65);
  std::filesystem::remove(log);
  testing::write_text(folder / "other", "secret\n" + end_line(0) + "\n");
  std::filesystem::create_symlink(folder / "other", log);
  const auto link = attach(folder.path());
  INFO(link.output);
  CHECK(link.code == 65);
  CHECK_THAT(link.output, !Catch::Contains("secret"));
  std::filesystem::remove(log);
  testing::write_text(log, "\x1b]0;owned\x07\n" + end_line(3) + "\n");
  const auto copied = attach(folder.path());
  CHECK(copied.code == 3);
  CHECK_THAT(copied.output, Catch::Contains("\\x1b]0;owned\\x07"));
  CHECK(copied.output.find('\x1b') == std::string::npos);
  if (::geteuid() != 0) {
    WARN("SKIPPED: only root can be another user");
    return;
  }
  REQUIRE(::chown(log.c_str(), 12345, 12345) == 0);
  const auto foreign = attach(folder.path());
  CHECK(foreign.code == 65);
  CHECK_THAT(foreign.output, Catch::Contains("belongs to another user") && !Catch::Contains("owned"));
}

TEST_CASE("[K06] a detached job's log is never open to others, not even for a moment") {
  auto folder = std::make_shared<testing::ScratchDirectory>();
  std::filesystem::create_directory(*folder / "run");
  const int events = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  REQUIRE(events >= 0);
  REQUIRE(::inotify_add_watch(events, (*folder / "run").c_str(), IN_CREATE | IN_ATTRIB) >= 0);
  Launch launch(1, {"--epochs", "1"}, {"--detach"}, {}, folder);
  CHECK(launch.finish().code == 0);
  bool created = false, changed = false;  // its mode, afterwards
  alignas(inotify_event) std::array<char, 1 << 16> block{};
  const auto n = ::read(events, block.data(), block.size());
  ::close(events);
  for (auto at = block.data(); at < block.data() + n;) {
    const auto* event = reinterpret_cast<const inotify_event*>(at);
    const bool is_log = event->len > 0 && std::string(event->name) == "launch.log";
    created = created || (is_log && (event->mask & IN_CREATE) != 0);
    changed = changed || (is_log && (event->mask & IN_ATTRIB) != 0);
    at += sizeof(inotify_event) + event->len;
  }
  CHECK(created);
  CHECK_FALSE(changed);
  (void)attach(*folder / "run");
}

TEST_CASE("[K06] [R01] attach speaks of the last job in a folder, not of an earlier detached one") {
  auto folder = std::make_shared<testing::ScratchDirectory>();
  const auto run = std::filesystem::path(*folder / "run");
  Launch first(1, {"--epochs", "2", "--pause_ms", "5"}, {"--detach"}, {}, folder);
  REQUIRE(first.finish().code == 0);
  const auto before = attach(run);
  REQUIRE(before.code == 0);
  REQUIRE_THAT(before.output, Catch::Contains("ended with exit code 0"));

  auto going_on = kLong;
  going_on.insert(going_on.end(), {"--resume", "latest"});
  {
    Launch second(1, going_on, {}, {}, folder);
    REQUIRE(second.wait_for("step 5"));
    const auto meanwhile = attach(run);
    CHECK(meanwhile.code == 2);
    CHECK_THAT(meanwhile.output, Catch::Contains("prints to the terminal that it was started in"));
    second.signal(SIGINT);
    REQUIRE(second.finish().code == 130);
  }
  const auto stopped = attach(run);
  CHECK(stopped.code == 130);
  CHECK_THAT(stopped.output, Catch::Contains("printed to its terminal, and ended with exit code 130") &&
                                 !Catch::Contains("ended with exit code 0"));
  Launch third(1, going_on, {}, {}, folder);
  REQUIRE(third.wait_for("resume from"));
  third.signal(SIGKILL);
  CHECK(third.finish().code == 128 + SIGKILL);
  const auto killed = attach(run);
  CHECK(killed.code == 69);
  CHECK_THAT(killed.output, Catch::Contains("noted no exit code") && !Catch::Contains("ended with exit code 0"));
}

TEST_CASE("[K06] a program that is none of Troupe's is detached at once, and it is said that no rank has begun") {
  const testing::ScratchDirectory folder;
  const auto begin = testing::Clock::now();
  const auto done = RunningProcess({TROUPE_PROGRAM, "launch", "--detach", "--no-recovery", "--run-dir", folder / "run",
                                    "/bin/sleep", "1000"})
                        .finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK(testing::Clock::now() - begin < std::chrono::seconds(60));
  CHECK_THAT(done.output, Catch::Contains(", but its ranks have not reported yet that they begin; `troupe attach "));
  ::kill(testing::pid_said_by(done.output, "troupe: process "), SIGTERM);
  CHECK(attach(folder / "run").code == 128 + SIGTERM);
}
