#include <signal.h>

#include <algorithm>

#include "launch/launcher/stop_patience.hpp"
#include "launch/process/still_saving.hpp"
#include "tests/catch.hpp"
#include "tests/support/launch.hpp"

using namespace troupe;
using testing::Launch;
using testing::RunningProcess;

namespace {

using Words = std::vector<std::string>;

const Words kEndless{"--epochs", "100000", "--pause_ms", "2"};

// A command whose process ignores the signal from its start, as nohup and a shell's background jobs have it.
Words ignoring(const std::string& signal, const Words& command) {
  Words all{"/bin/sh", "-c", "trap '' " + signal + "; exec \"$@\"", "sh"};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

Words probe(const testing::ScratchDirectory& folder, const Words& launcher) {
  Words all = launcher;
  for (const std::string word :
       {TROUPE_RANK_PROBE, "--batch_size", "16", "--epochs", "100000", "--pause_ms", "2", "--checkpoint_dir"})
    all.push_back(word);
  all.push_back(folder / "checkpoints");
  return all;
}

// The probe as a user starts it: alone, or launched on this machine or on a list of hosts.
Words started(const testing::ScratchDirectory& folder, const std::string& way) {
  if (way == "alone") {
    auto alone = probe(folder, {"/usr/bin/env"});
    alone.insert(alone.end(), {"--run_dir", folder / "run"});
    return alone;
  }
  const Words hosts = way == "hosts" ? Words{"--hosts", "localhost:2"} : Words{"--nproc", "2"};
  Words all{TROUPE_PROGRAM, "launch", "--run-dir", folder / "run"};
  all.insert(all.end(), hosts.begin(), hosts.end());
  return probe(folder, all);
}

// Sends the signal twice at once, as timeout does: to a process, and to its group. False: the machine stood still
// between the two, so that they are two requests.
bool signal_twice(RunningProcess& process, int number) {
  const auto begin = testing::Clock::now();
  process.signal(number);
  REQUIRE(process.wait_for("at least a second later"));  // the first one was taken
  process.signal(number);
  return testing::Clock::now() - begin < std::chrono::milliseconds(500);
}

}  // namespace

TEST_CASE("[L06] a signal that comes twice at once is one request: the job saves and says how to end it at once") {
  const testing::ScratchDirectory folder;
  RunningProcess job(started(folder, GENERATE(as<std::string>{}, "nproc", "hosts", "alone")));
  REQUIRE(job.wait_for("step 10/"));
  const bool at_once = signal_twice(job, SIGTERM);
  const auto done = job.finish();
  INFO(done.output);
  if (!at_once) {
    WARN("this machine was too slow to send a signal twice within a second");
    return;
  }
  CHECK(done.code == 128 + SIGTERM);
  CHECK_THAT(done.output, Catch::Contains("checkpoint: ") && Catch::Contains("continue with --resume latest"));
  CHECK(std::filesystem::exists(folder / "checkpoints/latest"));
}

TEST_CASE("[L06] a second signal that ends a job at once is named, and is no want of memory") {
  const testing::ScratchDirectory folder;
  auto command = started(folder, GENERATE(as<std::string>{}, "nproc", "hosts"));
  for (const std::string word : {"--fail_rank", "1", "--fail_step", "45", "--fail_how", "hang"})
    command.push_back(word);  // so that the first signal can't end it
  RunningProcess job(command);
  REQUIRE(job.wait_for("step 40/"));
  job.signal(SIGTERM);
  REQUIRE(job.wait_for("ends them at once"));
  job.signal(SIGINT);
  const auto done = job.finish();
  INFO(done.output);
  CHECK(done.code >= 128);
  CHECK_THAT(done.output, Catch::Contains("ended at once on a second signal (SIGINT)"));
  CHECK_THAT(done.output, !Catch::Contains("out of memory") && !Catch::Contains("failed: "));
  CHECK(testing::processes_of(folder.path()).empty());
}

TEST_CASE(
    "[L06] a signal to all processes of a job, as Slurm sends it, spares the coordinator until the job has saved") {
  Launch job(2, kEndless);
  REQUIRE(job.wait_for("step 10/"));
  REQUIRE(::kill(testing::process_of(TROUPE_PROGRAM, "coordinator", job.pid()), SIGTERM) == 0);
  REQUIRE(job.wait_for("step 40/"));
  job.signal(SIGTERM);
  const auto done = job.finish();
  INFO(done.output);
  CHECK(done.code == 128 + SIGTERM);
  CHECK_THAT(done.output, Catch::Contains("continue with --resume latest") && !Catch::Contains("the coordinator died"));
}

TEST_CASE("[L07] a job with a time limit saves before it is over", "[share]") {
  Launch job(2, {"--epochs", "100000", "--pause_ms", "100"}, {"--time-limit", "20"});
  const auto done = job.finish();
  INFO(done.output);
  CHECK(done.code == 128 + SIGTERM);
  CHECK_THAT(done.output, Catch::Contains("the time limit is near: every rank") &&
                              Catch::Contains("continue with --resume latest") && Catch::Contains("checkpoint: "));
}

TEST_CASE("[L05] a signal that was ignored at the start stays ignored") {
  const testing::ScratchDirectory folder;
  const auto [signal, number, way] = GENERATE(table<std::string, int, std::string>(
      {{"HUP", SIGHUP, "nproc"}, {"INT", SIGINT, "nproc"}, {"HUP", SIGHUP, "hosts"}, {"INT", SIGINT, "alone"}}));
  RunningProcess job(ignoring(signal, started(folder, way)));
  REQUIRE(job.wait_for("step 10/"));
  for (const auto pid : testing::processes_of(folder.path())) ::kill(pid, number);
  CHECK(job.wait_for("step 60/"));
  job.signal(SIGTERM);
  const auto done = job.finish();
  INFO(way << ", " << signal << "\n" << done.output);
  CHECK(done.code == 128 + SIGTERM);
  CHECK_THAT(done.output, Catch::Contains("continue with --resume latest"));
}

TEST_CASE("[L06] an agent waits 60 s from the request to stop, and from each sign that a rank still saves") {
  const StopPatience::Time start{};
  const auto after = [&](int seconds) { return start + std::chrono::seconds(seconds); };
  StopPatience patience;
  patience.still_saving(after(-500));  // of an earlier save
  patience.asked(start);
  CHECK_FALSE(patience.is_over(after(60)));
  CHECK(patience.is_over(after(61)));
  for (int second = 20; second <= 300; second += 20) patience.still_saving(after(second));
  CHECK_FALSE(patience.is_over(after(360)));
  CHECK(patience.is_over(after(361)));
}

TEST_CASE("[L06] the sign that a rank still saves is its agent's, not the user's") {
  const testing::ScratchDirectory folder;
  const auto done = RunningProcess({TROUPE_PROGRAM, "launch", "--no-recovery", "--run-dir", folder / "run", "/bin/sh",
                                    "-c", "printf '\\036troupe: still saving\\n' >&2; echo as usual"})
                        .finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("[rank 0] as usual") && !Catch::Contains("still saving"));
}
