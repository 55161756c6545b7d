// Faults by their number in docs/faults.md, as far as they need processes and not hosts of their own (tests/net has those).
#include <sys/stat.h>

#include "tests/support/recovery_run.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using testing::check_bits;
using testing::Launch;
using testing::pid_said_by;
using testing::processes_of;
using testing::undisturbed;
using Run = testing::RecoveryRun;

namespace {

std::string facts_of(pid_t pid, const char* file) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/" + file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The process of the folder whose environment has this entry; -1: none.
pid_t process_with(const std::string& folder, const std::string& entry) {
  for (const auto pid : processes_of(folder)) {
    if (facts_of(pid, "environ").find(entry + '\0') != std::string::npos) return pid;
  }
  return -1;
}

pid_t coordinator_of(const Launch& launch) { return testing::process_of("troupe", "coordinator", launch.pid()); }

void check_one_life_each(const Run& run) {
  for (const auto& [rank, lives] : run.lives()) {
    INFO(rank);
    CHECK(lives == 1);
  }
}

}  // namespace

TEST_CASE("[L05] fault 9: a rank that stands still for half a second is not replaced") {
  const Run run(4, {}, "", {"--pause_ms", "5"}, [](Launch& launch) {
    REQUIRE(launch.wait_for("step 8/"));
    const auto rank = pid_said_by(launch.output(), "[rank 1] pid ");
    REQUIRE(rank > 0);
    ::kill(rank, SIGSTOP);
    std::this_thread::sleep_for(500ms);
    ::kill(rank, SIGCONT);
  });
  INFO(run.output);
  CHECK(run.recoveries().empty());
  check_one_life_each(run);
  check_bits(run, undisturbed());
}

TEST_CASE("[L04] fault 10: a coordinator that stands still for ten seconds stops nobody, accuses nobody, and does its work afterwards") {
  Launch launch(2, {"--probe_model", "norm", "--log_interval", "1", "--run_dir", "", "--pause_ms", "20", "--epochs", "48"}, {});
  REQUIRE(launch.wait_for("step 10/"));
  const auto coordinator = coordinator_of(launch);
  REQUIRE(coordinator > 0);
  ::kill(coordinator, SIGSTOP);
  launch.pass(10s);
  CHECK(launch.output().find("step 60/") != std::string::npos);  // they trained on
  ::kill(coordinator, SIGCONT);
  launch.pass(1s);
  const auto rank = pid_said_by(launch.output(), "[rank 1] pid ");
  REQUIRE(rank > 0);
  ::kill(rank, SIGKILL);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK(testing::recoveries_in(done.output).size() == 1);
  CHECK_THAT(done.output, Catch::Contains("generation 2: 1 rank replaced") && !Catch::Contains("silent"));
}

TEST_CASE("[L04] fault 11: a coordinator killed at any write of its journal takes the job over without a lost step") {
  // Step 1: the first membership, 2: that of the recovery; 0: what it writes when it starts.
  const std::string fault = GENERATE(as<std::string>{}, "slot=coordinator,step=0,at=journal",  //
                                     "slot=coordinator,step=0,at=journalled",                  //
                                     "slot=coordinator,step=1,at=journal",                     //
                                     "slot=coordinator,step=1,at=journalled",                  //
                                     "slot=coordinator,step=2,at=journal",                     //
                                     "slot=coordinator,step=2,at=journalled",                  //
                                     "slot=coordinator,step=1,at=journalled;slot=coordinator,step=0,at=journal,life=1");
  INFO(fault);
  const Run run(4, {}, fault + ";slot=2,step=11,at=forward");
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("the coordinator died (signal 9"));
  // Killed between writing generation 2 down and announcing it, it could not say so any more.
  CHECK(run.recoveries().size() == (fault == "slot=coordinator,step=2,at=journalled" ? 0 : 1));
  for (const auto& [rank, lives] : run.lives()) CHECK(lives == (rank == "rank 2" ? 2 : 1));
  check_bits(run, undisturbed());
}

TEST_CASE("[L04] fault 12: a second coordinator for the same job is refused, and the job does not notice") {
  const Run run(4, {}, "", {"--pause_ms", "20"}, [](Launch& launch) {
    REQUIRE(launch.wait_for("step 5/"));
    const auto words = facts_of(coordinator_of(launch), "cmdline");
    const auto at = words.find(std::string("--job") + '\0') + 6;
    const auto second = testing::RunningProcess({TROUPE_PROGRAM, "coordinator", "--job", words.substr(at, words.find('\0', at) - at),
                                                 "--world-size", "4", "--recovery", "--journal", launch.folder() / "run/journal"})
                            .finish();
    CHECK(second.code == 69);
    CHECK_THAT(second.output, Catch::Contains("another coordinator holds this journal"));
  });
  INFO(run.output);
  CHECK(run.recoveries().empty());
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] fault 25: a loader that throws on one rank ends the job with its text, its rank and nobody left waiting") {
  Launch launch(3, {"--batch_size", "12", "--fail_rank", "1", "--fail_how", "load_throw"}, {});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 1);
  CHECK_THAT(done.output, Catch::Contains("the probe's disk is gone") && Catch::Contains("rank 1"));
  CHECK(processes_of(launch.folder().path()).empty());
}

TEST_CASE("[L05] fault 25: a loader that stands still on one rank is waited for") {
  const Run run(4, {}, "", {"--fail_rank", "1", "--fail_how", "load_stall"});
  INFO(run.output);
  CHECK(run.recoveries().empty());
  check_one_life_each(run);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] fault 25: a loader that stands still for longer than the deadline is named, and the same ranks go on") {
  const Run run(4, {}, "", {"--fail_rank", "1", "--fail_how", "load_stall", "--collective_timeout", "2"});
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("is interrupted: ") && Catch::Contains("rank 1 did not come within 2000 ms"));
  CHECK_FALSE(run.recoveries().empty());
  check_one_life_each(run);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] fault 31: a flipped bit in one of three replicas is found and healed once") {
  const Run run(3, {}, "", {"--batch_size", "12", "--verify_every", "4", "--fail_rank", "1", "--fail_step", "9", "--fail_how", "flip"});
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("step 11: rank 1 holds other parameters than ranks 0, 2 (localhost): healed from ranks 0, 2"));
  CHECK(run.output.find("holds other parameters") == run.output.rfind("holds other parameters"));
  CHECK(run.recoveries().empty());
}

TEST_CASE("[L05] fault 31: of two replicas that differ none is right: the job ends with 65, unless rank 0 is to be trusted") {
  const bool trust = GENERATE(true, false);
  Launch launch(
      2,
      {"--verify_every", "4", "--fail_rank", "1", "--fail_step", "9", "--fail_how", "flip", "--on_divergence", trust ? "rank_0" : "heal"},
      {});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == (trust ? 0 : 65));
  CHECK_THAT(done.output, Catch::Contains("rank 1 holds other parameters than rank 0 (localhost)") &&
                              Catch::Contains(trust ? "healed from rank 0, rank 0's side" : "nobody knows which is right"));
}

TEST_CASE("[L05] fault 32: a rank three times as slow as the others is named within 20 steps, and stays") {
  const Run run(4, {}, "", {"--pause_ms", "20", "--fail_rank", "2", "--fail_step", "8", "--fail_how", "slow"});
  INFO(run.output);
  const std::regex line(R"(step (\d+): rank 2 \(localhost\) is slow: .*most of it in forward)");
  std::smatch found;
  REQUIRE(std::regex_search(run.output, found, line));
  CHECK(std::stoi(found[1]) <= 8 + 20);
  CHECK_THAT(run.output, Catch::Contains("slow: rank 2 (forward "));
  CHECK(run.recoveries().empty());
  check_one_life_each(run);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] fault 33: with a node agent killed its ranks are gone, its host is left out, and nothing is orphaned") {
  testing::ScratchDirectory folder;
  std::ofstream(folder / "hosts") << "a slots=3 address=127.0.0.1\nb slots=1 address=127.0.0.2\n";
  testing::RunningProcess launch({TROUPE_PROGRAM,
                                  "launch",
                                  "--hosts",
                                  folder / "hosts",
                                  "--run-dir",
                                  folder / "run",
                                  TROUPE_RANK_PROBE,
                                  "--probe_model",
                                  "norm",
                                  "--batch_size",
                                  "12",
                                  "--log_interval",
                                  "1",
                                  "--run_dir",
                                  "",
                                  "--pause_ms",
                                  "20",
                                  "--epochs",
                                  "4",
                                  "--checkpoint_dir",
                                  folder / "checkpoints"});
  REQUIRE(launch.wait_for("step 10/"));
  const auto agent = testing::process_of("troupe", std::string("--host\0b\0", 9), launch.pid());
  const auto rank = pid_said_by(launch.output(), "[rank 3] pid ");
  REQUIRE(agent > 0);
  REQUIRE(rank > 0);
  ::kill(agent, SIGKILL);
  REQUIRE(launch.wait_for("shrinks from 4 to 3 ranks"));
  CHECK(facts_of(rank, "cmdline").empty());  // gone, or a zombie that nobody has waited for yet
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("host b: its agent ended (signal 9") && Catch::Contains("the agent of b is gone"));
  CHECK(processes_of(folder.path()).empty());
}

TEST_CASE("[L05] fault 36: a spare that dies idle is noticed, and the next death shrinks the job") {
  const Run run(3, {"--spares", "1", "--max-restarts", "0"}, "", {"--batch_size", "12", "--pause_ms", "20"}, [](Launch& launch) {
    REQUIRE(launch.wait_for("step 5/"));
    const auto spare = process_with(launch.folder().path(), "TROUPE_SPARE=1");
    REQUIRE(spare > 0);
    ::kill(spare, SIGKILL);
    REQUIRE(launch.wait_for("the process in slot 3 is gone"));
    const auto rank = pid_said_by(launch.output(), "[rank 1] pid ");
    REQUIRE(rank > 0);
    ::kill(rank, SIGKILL);
  });
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("shrinks from 3 to 2 ranks"));
  CHECK(run.recoveries().size() == 1);
}

TEST_CASE("[L05] fault 36: when all spares are used up the job shrinks") {
  const Run run(3, {"--spares", "1", "--max-restarts", "0"}, "slot=1,step=9,at=forward;slot=2,step=15,at=forward", {"--batch_size", "12"});
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("generation 2: 1 rank replaced") && Catch::Contains("generation 3: shrinks from 3 to 2 ranks"));
}

TEST_CASE("[L05] fault 37: a clock that jumps by an hour, forwards and back, changes nothing") {
  const std::string library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
  if (!std::filesystem::exists(library)) {
    WARN("NOT RUN: there is no libfaketime here (Debian package faketime)");
    return;
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  WARN("NOT RUN: libfaketime and a sanitizer's runtime both have to be loaded first");
  return;
#endif
  const auto& reference = undisturbed();
  testing::ScratchDirectory folder;
  const auto set_clock = [&](const std::string& offset) {
    std::ofstream(folder / "new") << offset << "\n";
    std::filesystem::rename(folder / "new", folder / "clock");
  };
  set_clock("+0s");
  const std::map<std::string, std::string> environment{{"LD_PRELOAD", library},
                                                       {"FAKETIME_TIMESTAMP_FILE", folder / "clock"},
                                                       {"FAKETIME_NO_CACHE", "1"},
                                                       {"FAKETIME_DONT_FAKE_MONOTONIC", "1"},
                                                       {"DONT_FAKE_MONOTONIC", "1"}};
  const auto seconds_there = [&] { return std::stol(testing::RunningProcess({"/usr/bin/date", "+%s"}, environment).finish().output); };
  auto arguments = testing::kRecoveryProbe;
  arguments.insert(arguments.end(), {"--run_dir", folder / "metrics", "--pause_ms", "40"});
  Launch launch(4, arguments, {}, environment);
  const auto wait_and_jump = [&](const char* step, const char* offset, long seconds) {
    REQUIRE(launch.wait_for(step));
    set_clock(offset);
    const auto apart = seconds_there() - std::time(nullptr);
    CHECK(std::abs(apart - seconds) < 5);  // the jump is real for the processes of the job
  };
  wait_and_jump("step 8/", "+3600s", 3600);
  wait_and_jump("step 16/", "-3600s", -3600);
  wait_and_jump("step 24/", "+0s", 0);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK(testing::recoveries_in(done.output).empty());
  CHECK_THAT(done.output, !Catch::Contains("silent"));
  CHECK((testing::losses_of(testing::read_text(folder / "metrics/metrics.jsonl")) == reference.losses));
}

namespace {

std::vector<nlohmann::json> read_ledger(const std::string& path) {
  std::vector<nlohmann::json> records;
  std::istringstream lines(testing::read_text(path));
  for (std::string line; std::getline(lines, line);) records.push_back(nlohmann::json::parse(line));
  return records;
}

std::size_t under_way(const std::vector<nlohmann::json>& records) {
  return static_cast<std::size_t>(std::count_if(records.begin(), records.end(), [](const auto& record) { return !record["finished"]; }));
}

}  // namespace

TEST_CASE("[L09] a rank that hangs in its own code is killed and replaced, and every rank's last collectives are on disk and named") {
  Launch launch(3,
                {"--probe_model", "norm", "--batch_size", "12", "--log_interval", "1", "--run_dir", "", "--fail_rank", "1", "--fail_step",
                 "9", "--fail_how", "hang", "--collective_timeout", "2"},
                {"--hang-after", "1"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("it hangs: it did not leave its step") && Catch::Contains("generation 2: 1 rank replaced"));
  for (const std::string rank : {"0", "1", "2"}) {
    const auto path = launch.folder() / ("run/ledger-rank" + rank + ".jsonl");
    CHECK_THAT(done.output, Catch::Contains("the last collectives of rank " + rank + " are in " + path));
    const auto records = read_ledger(path);
    REQUIRE(records.size() > 9);
    CHECK(under_way(records) == (rank == "1" ? 0 : 1));
    CHECK(records.back()["step"] == (rank == "1" ? 8 : 9));
    CHECK(records.back()["rank"] == std::stoi(rank));
  }
}

TEST_CASE("[L09] without recovery the error of a hang names the file with the last collectives") {
  Launch launch(2, {"--fail_rank", "1", "--fail_step", "9", "--fail_how", "hang", "--collective_timeout", "1"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 70);
  CHECK_THAT(done.output, Catch::Contains("last collectives") && Catch::Contains(launch.folder() / "run/ledger-rank0.jsonl"));
  CHECK(under_way(read_ledger(launch.folder() / "run/ledger-rank0.jsonl")) == 1);
}
