#include <signal.h>

#include <ATen/core/Formatting.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "launch/process/output_lines.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tests/catch.hpp"
#include "tests/support/count_of.hpp"
#include "tests/support/launch.hpp"
#include "tests/support/sanitized.hpp"

using namespace troupe;
using testing::Clock;
using testing::Launch;
using testing::processes_of;

namespace {

void check_equal(const TrainingState& a, const TrainingState& b) {
  CHECK(a.step == b.step);
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    INFO(a.tensors[i].first << "\n" << a.tensors[i].second << "\n" << b.tensors[i].second);
    CHECK(a.tensors[i].first == b.tensors[i].first);
    CHECK(a.tensors[i].second.equal(b.tensors[i].second));
  }
}

}  // namespace

TEST_CASE("[L01] troupe launch trains on two processes, marks lines with the rank and keeps each rank's log") {
  Launch launch(2, {"--epochs", "2"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("[rank 0] epoch 1/2") && Catch::Contains("2 ranks, backend shm") &&
                              Catch::Contains("step-00000032"));
  CHECK_THAT(testing::read_text(launch.folder() / "run/rank0.log"), Catch::Contains("epoch 2/2"));
  CHECK(std::filesystem::exists(launch.folder() / "run/rank1.log"));
  CHECK(done.output.find('\x1b') == std::string::npos);  // no escape codes in a pipe
}

TEST_CASE(
    "[T06] fault 22: an exception on one rank ends the job with its text, rank and step, and the exit code of that "
    "rank") {
  Launch launch(2, {"--fail_rank", "1"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 1);
  CHECK_THAT(done.output, Catch::Contains("[rank 1] error: rank 1, compute, step 3: the probe was told to throw") &&
                              Catch::Contains("troupe: rank 1 on localhost failed: exit code 1; its log: ") &&
                              Catch::Contains("troupe: next: tail -n 50 " + (launch.folder() / "run/rank1.log")));
  CHECK(processes_of(launch.folder().path()).empty());
}

TEST_CASE("[T06] a rank that is killed ends the job, and the signal is named") {
  Launch launch(2, {"--fail_rank", "1", "--fail_how", "kill"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 137);
  CHECK_THAT(done.output,
             Catch::Contains(
                 "rank 1 on localhost failed: signal 9 (Killed), which this job did not send: perhaps out of memory"));
}

TEST_CASE("[T06] a rank that TROUPE_FAULT kills is not taken for one without memory") {
  const bool recovers = GENERATE(false, true);
  Launch launch(2, {"--probe_model", "plain", "--epochs", "2"},
                recovers ? std::vector<std::string>{} : std::vector<std::string>{"--no-recovery"},
                {{"TROUPE_FAULT", "slot=1,step=3,at=vote"}});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == (recovers ? 0 : 137));
  CHECK_THAT(done.output, !Catch::Contains("out of memory"));
  if (!recovers)
    CHECK_THAT(done.output,
               Catch::Contains("rank 1 on localhost failed: signal 9 (Killed); TROUPE_FAULT names its slot; its log:"));
}

TEST_CASE("[T06] a rank's last line is shown once if it is the last one on the screen") {
  Launch launch(1, {"--fail_rank", "0", "--fail_how", "throw"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 1);
  CHECK(testing::count_of(done.output, "the probe was told to throw") == 1);
  CHECK_THAT(done.output, Catch::Contains("troupe: rank 0 on localhost failed: exit code 1; its log: "));
}

TEST_CASE("[T06] a rank that a library aborts tells its stack") {
  NOT_UNDER_ADDRESS_SANITIZER("it handles fatal signals");
  Launch launch(2, {"--fail_rank", "1", "--fail_how", "abort"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 134);
  CHECK_THAT(done.output, Catch::Contains("[rank 1] fatal: SIGABRT, with the stack above") &&
                              Catch::Contains("(abort+0x") && Catch::Contains("rank_probe(+0x") &&
                              Catch::Contains("rank 1 on localhost failed: signal 6 (Aborted)") &&
                              Catch::Contains("its last line: fatal: SIGABRT"));
}

TEST_CASE("[T06] a rank that uses a parameter which is on the others tells which, and what to do") {
  NOT_UNDER_ADDRESS_SANITIZER("it handles fatal signals");
  Launch launch(2, {"--fail_rank", "1", "--fail_how", "touch", "--probe_model", "wide", "--probe_width", "64",
                    "--strategy", "fsdp", "--fsdp_mapped", "false"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 139);
  CHECK_THAT(done.output,
             Catch::Contains("[rank 1] fatal: SIGSEGV") &&
                 Catch::Contains("its last line: fatal: a parameter of the unit '16' was used while it is sharded") &&
                 Catch::Contains("rank.state_dict(optimizer)"));
}

TEST_CASE("[T06] a rank that exits early ends the job with its exit code") {
  Launch launch(2, {"--fail_rank", "0", "--fail_how", "exit"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 7);
}

TEST_CASE("[T06] fault 34: Ctrl-C finishes the step, writes a checkpoint and exits 130, and 143 on SIGTERM") {
  const int number = GENERATE(SIGINT, SIGTERM);
  Launch launch(2, {"--epochs", "100000", "--pause_ms", "2"});
  REQUIRE(launch.wait_for("step 10/"));
  launch.signal(number);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 128 + number);
  CHECK_THAT(done.output, Catch::Contains("checkpoint: ") && Catch::Contains("--resume latest"));
  CHECK(std::filesystem::exists(launch.folder() / "checkpoints/latest"));
  CHECK(processes_of(launch.folder().path()).empty());
}

TEST_CASE("[R12] a run that is stopped and saves nothing promises no resume") {
  Launch launch(2, {"--epochs", "100000", "--pause_ms", "2", "--save_every", "-1"});
  REQUIRE(launch.wait_for("step 10/"));
  launch.signal(SIGINT);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 130);
  CHECK_THAT(done.output, Catch::Contains("which is not saved") && !Catch::Contains("continue with --resume latest"));
}

TEST_CASE("[T06] fault 34: a launcher that is killed leaves no orphan") {
  Launch launch(2, {"--epochs", "100000", "--pause_ms", "2"});
  REQUIRE(launch.wait_for("step 10/"));
  launch.signal(SIGKILL);
  (void)launch.finish();
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (!processes_of(launch.folder().path()).empty() && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(processes_of(launch.folder().path()).empty());
}

TEST_CASE("[L01] wrong use of the launcher is one line and starts nothing") {
  const auto [arguments, code, text] = GENERATE(table<std::vector<std::string>, int, std::string>({
      {{"launch", "--nproc", "0", "x"}, 2, "'0' is not a whole number from 1"},
      {{"launch", "--nporc", "2", "x"}, 2, "did you mean --nproc?"},
      {{"launch", "--nproc", "2"}, 2, "no program was named"},
      {{"launch", "/nowhere/at/all"}, 69, "there is no such program"},
      {{"launch", "/etc/passwd"}, 69, "not an executable file"},
      {{"lunch"}, 2, "did you mean launch?"},
  }));
  std::vector<std::string> command{TROUPE_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const auto done = testing::RunningProcess(command).finish();
  CHECK(done.code == code);
  CHECK_THAT(done.output, Catch::Contains(text));
  CHECK(std::count(done.output.begin(), done.output.end(), '\n') == 1);
}

TEST_CASE(
    "[C01] two processes that are killed after the checkpoint of step 30 resume bit-equal to the uninterrupted run") {
  std::vector<std::string> run{"--max_steps", "60",          "--epochs", "4",          "--save_every",
                               "30",          "--keep_last", "10",       "--schedule", "cosine"};
  run.insert(run.end(), {"--optimizer", GENERATE(as<std::string>{}, "sgd", "adamw")});
  Launch whole(2, run);
  const auto finished = whole.finish();
  INFO(finished.output);
  REQUIRE(finished.code == 0);

  // Rank 1 hangs in step 45, so that nothing but the kill can end this one. `latest` is the last thing that a
  // checkpoint writes.
  auto hang = run;
  hang.insert(hang.end(), {"--fail_rank", "1", "--fail_step", "45", "--fail_how", "hang"});
  Launch killed(2, hang);
  REQUIRE(killed.wait_for_file("checkpoints/latest"));
  for (const auto pid : processes_of(killed.folder().path())) ::kill(pid, SIGKILL);
  CHECK(killed.finish().code == 128 + SIGKILL);
  CHECK(std::filesystem::exists(killed.folder() / "checkpoints/step-00000030"));
  CHECK_FALSE(std::filesystem::exists(killed.folder() / "checkpoints/step-00000060"));

  run.insert(run.end(), {"--resume", "latest"});
  Launch resumed(2, run, {"--no-recovery"}, {}, killed.shared_folder());
  const auto done = resumed.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("resume from") && Catch::Contains("step 30"));
  const auto state = load_checkpoint(resumed.folder() / "checkpoints", "latest").state;
  CHECK(state.step == 60);
  check_equal(state, load_checkpoint(whole.folder() / "checkpoints", "latest").state);
}

TEST_CASE("[L06] simulated ranks compute the bits of processes, also where a model draws random numbers") {
  const std::vector<std::string> run{"--epochs", "2", "--run_dir", ""};
  Launch processes(2, run);
  REQUIRE(processes.finish().code == 0);
  testing::ScratchDirectory folder;
  std::vector<std::string> command{TROUPE_RANK_PROBE,     "--ranks", "2", "--batch_size", "16", "--checkpoint_dir",
                                   folder / "checkpoints"};
  command.insert(command.end(), run.begin(), run.end());
  const auto simulated = testing::RunningProcess(command).finish();
  INFO(simulated.output);
  REQUIRE(simulated.code == 0);
  CHECK_THAT(simulated.output, Catch::Contains("simulated cluster") && Catch::Contains("2 ranks"));
  check_equal(load_checkpoint(folder / "checkpoints", "latest").state,
              load_checkpoint(processes.folder() / "checkpoints", "latest").state);
}

TEST_CASE("[L01] the same program runs bare as one rank") {
  testing::ScratchDirectory folder;
  const auto done = testing::RunningProcess({TROUPE_RANK_PROBE, "--batch_size", "16", "--epochs", "1", "--run_dir",
                                             folder / "run", "--checkpoint_dir", folder / "checkpoints"})
                        .finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output,
             Catch::Contains("1 rank,") && Catch::Contains("step 10/16") && Catch::Contains("step-00000016"));
}

TEST_CASE("[T05] rank 0 alone prints, and what any rank prints is in its log under the run's folder") {
  Launch launch(2, {"--epochs", "1", "--profile", "true", "--fail_rank", "1", "--fail_step", "12"});
  const auto done = launch.finish();
  INFO(done.output);
  const auto log = [&](const char* name) { return testing::read_text(launch.folder() / (std::string("run/") + name)); };
  CHECK_THAT(log("rank0.log"), Catch::Contains("epoch 1/1  step 10/16"));
  // Training said nothing on rank 1; its own failure did.
  CHECK_THAT(log("rank1.log"),
             !Catch::Contains("epoch") && !Catch::Contains("model:") && Catch::Contains("told to throw"));
  CHECK_THAT(done.output, Catch::Contains("[rank 0] epoch 1/1") && !Catch::Contains("[rank 1] epoch"));
}

TEST_CASE("the profile flag prints where the time of rank 0's steps went, once, and nothing without it") {
  const bool asked = GENERATE(true, false);
  Launch launch(2, {"--epochs", "1", "--profile", asked ? "true" : "false"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK((done.output.find("[rank 0] profile: where the time of a step went (this rank, mean of 16 steps)") !=
         std::string::npos) == asked);
  CHECK((done.output.find("forward and backward") != std::string::npos) == asked);
  CHECK((done.output.find("launched before backward ended") != std::string::npos) == asked);
  CHECK(done.output.find("[rank 1] profile") == std::string::npos);
}

TEST_CASE("output is cut into whole lines, however it arrives") {
  OutputLines lines;
  std::vector<std::pair<std::string, bool>> seen;
  const auto collect = [&](std::string_view text, bool overwrite) { seen.emplace_back(text, overwrite); };
  lines.feed("one\ntw", collect);
  lines.feed("o\r50%\r\nlast", collect);
  lines.finish(collect);
  CHECK((seen == std::vector<std::pair<std::string, bool>>{
                     {"one", false}, {"two", true}, {"50%", true}, {"", false}, {"last", false}}));
}
