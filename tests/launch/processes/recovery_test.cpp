// A job of processes loses ranks in every phase of a step, and goes on as if nothing had happened (the faults are
// numbered as in docs/faults.md).
#include <cmath>
#include <iterator>

#include "tests/share.hpp"
#include "tests/support/recovery_run.hpp"

using namespace troupe;
using testing::check_bits;
using testing::kRecoveryProbe;
using testing::Launch;
using testing::undisturbed;
using Run = testing::RecoveryRun;

namespace {

void check_death_in(const std::string& phase) {
  const int slot = GENERATE(0, 2);
  if (!testing::in_share(0.4, phase + std::to_string(slot))) return;
  INFO(phase << ", slot " << slot);
  const Run run(4, {}, "slot=" + std::to_string(slot) + ",step=11,at=" + phase,
                {"--first_bucket_mb", "0.001", "--bucket_cap_mb", "0.001"});
  const auto& reference = undisturbed();
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  for (const auto& [rank, lives] : run.lives()) CHECK(lives == (rank == "rank " + std::to_string(slot) ? 2 : 1));
  CHECK(run.repeated.empty());
  check_bits(run, reference);
}

}  // namespace

TEST_CASE(
    "[L05] fault 1: a rank killed in forward or backward is replaced, and the job ends with the bits of an undisturbed "
    "one") {
  check_death_in(GENERATE(as<std::string>{}, "data", "forward", "backward"));
}

TEST_CASE(
    "[L05] fault 2: a rank killed between its first bucket and the vote is replaced, and the step is run again with "
    "the same bits") {
  check_death_in(GENERATE(as<std::string>{}, "buckets", "collective", "reduced", "vote"));
}

TEST_CASE(
    "[L05] fault 3: a rank killed after the vote and before the commit is replaced, and the survivors agree on the "
    "step") {
  check_death_in(GENERATE(as<std::string>{}, "voted", "committed"));
}

TEST_CASE("[L05] fault 4: a rank killed in the optimizer is replaced, and healed to the step that the survivors have") {
  check_death_in("optimizer");
}

TEST_CASE(
    "[D16] [L05] a rank killed around an early update is replaced, and the job ends with the bits of an undisturbed "
    "one") {
  const std::vector<std::string> early = {"--early_update",  "true", "--first_bucket_mb", "0.001",
                                          "--bucket_cap_mb", "0.001"};
  const auto fault = GENERATE(as<std::string>{}, "step=1,at=allocate", "step=11,at=buckets", "step=11,at=collective",
                              "step=11,at=voted", "step=11,at=committed", "step=12,at=optimizer");
  if (!testing::in_share(0.4, "early " + fault)) return;
  static const Run reference(4, {}, "", early);
  const Run run(4, {}, "slot=2," + fault, early);
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  CHECK(run.repeated.empty());
  check_bits(run, reference);
}

TEST_CASE("[L05] a rank killed while the ranks share new memory is replaced", "[share]") {
  const Run run(4, {}, "slot=" + std::to_string(GENERATE(0, 3)) + ",step=-1,at=allocate");  // before the first step
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  check_bits(run, undisturbed());
}

// 16 steps were done in the first epoch; with half the batch size the second begins at what would be step 32.
TEST_CASE("[L05] [S04] a newcomer to a run that was resumed with another batch size stands where the others are") {
  testing::ScratchDirectory folder;
  auto words = kRecoveryProbe;
  words.insert(words.end(), {"--epochs", "1", "--checkpoint_dir", folder / "first"});
  Launch first(2, words);
  const auto done = first.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  const std::vector<std::string> resumed{"--batch_size", "8", "--resume", folder / "first"};
  const Run reference(2, {}, "", resumed), run(2, {}, "slot=1,step=25,at=vote", resumed);
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  CHECK(run.losses.size() == 32);
  check_bits(run, reference);
}

TEST_CASE("[L05] ranks whose buffers differ outlive one of them: the newcomer gets the first survivor's") {
  const std::string strategy = GENERATE("ddp", "zero2");
  INFO(strategy);
  const Run run(4, {}, "slot=2,step=11,at=forward", {"--broadcast_buffers", "false", "--strategy", strategy});
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  CHECK(run.losses.size() == 32);
}

// The optimizer is healed when it is first needed; each rank writes a share of its state.
TEST_CASE("[L05] a rank that comes in after the last step saves the optimizer's state of the others, not its own",
          "[share]") {
  const int slot = GENERATE(0, 3);
  const Run run(4, {}, "slot=" + std::to_string(slot) + ",step=31,at=optimizer");
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] a rank killed during a save is replaced, and the checkpoint is written", "[share]") {
  const int slot = GENERATE(0, 2);
  const Run run(4, {}, "slot=" + std::to_string(slot) + ",step=16,at=save");
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] a spare takes the place of a rank without a restart") {
  const Run run(4, {"--spares", "1", "--max-restarts", "0"}, "slot=2,step=11,at=collective");
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  CHECK(run.lives().at("spare 4") == 1);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] without a replacement the job shrinks and keeps its global batch") {
  const Run run(3, {"--max-restarts", "0"}, "slot=0,step=11,at=vote", {"--batch_size", "12"});
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("shrinks from 3 to 2 ranks at step 11"));
  CHECK(run.state.step == 2 * (256 / 12));
  CHECK(run.losses.size() == 2 * (256 / 12));
  CHECK(run.losses.rbegin()->second < 0.6);
}

TEST_CASE(
    "[X06] ranks with unequal shares outlive one of them: with the bits of an undisturbed job, or with new shares "
    "where it shrinks",
    "[share]") {
  const std::vector<std::string> weighted{"--balance", "1,3,2,2"};
  const Run reference(4, {}, "", weighted);
  const Run replaced(4, {}, "slot=1,step=11,at=" + GENERATE(as<std::string>{}, "forward", "vote", "committed"),
                     weighted);
  INFO(replaced.output);
  CHECK(replaced.recoveries().size() == 1);
  check_bits(replaced, reference);
  const Run shrunk(4, {"--max-restarts", "0"}, "slot=1,step=11,at=vote", weighted);
  INFO(shrunk.output);
  CHECK_THAT(shrunk.output, Catch::Contains("shrinks from 4 to 3 ranks at step 11"));
  CHECK(shrunk.losses.size() == reference.losses.size());
  CHECK(shrunk.losses.rbegin()->second < 0.6);
}

// Step 11 is the last before the switch, which is done between its commit and the next step.
TEST_CASE("[X06] a rank killed around a switch of strategy is replaced, and all ranks go on with one strategy") {
  const auto plan = GENERATE(as<std::string>{}, "12:diloco", "4:diloco,12:ddp");
  const auto phase = GENERATE(as<std::string>{}, "slot=2,step=11,at=vote", "slot=2,step=11,at=committed",
                              "slot=0,step=11,at=optimizer", "slot=2,step=11,at=stage", "slot=2,step=11,at=switch",
                              "slot=0,step=11,at=switched");
  if (!testing::in_share(0.25, plan + phase)) return;
  const std::vector<std::string> settings{"--switch_at",    plan, "--sync_every",    "5",
                                          "--verify_every", "3",  "--on_divergence", "stop"};
  INFO(plan << ", " << phase);
  static std::map<std::string, double> references;
  const auto late_loss = [](const Run& run) {
    double sum = 0;
    for (auto step = run.losses.rbegin(); step != std::next(run.losses.rbegin(), 12); ++step) sum += step->second / 12;
    return sum;
  };
  if (!references.contains(plan)) references[plan] = late_loss(Run(4, {}, "", settings));
  const Run run(4, {}, phase, settings);
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  CHECK(run.losses.size() == 32);
  CHECK(run.repeated.empty());
  CHECK(run.state.metadata.at("strategy") == plan.substr(plan.rfind(':') + 1));
  CHECK(run.state.metadata.at("switching.switches") == (plan == "12:diloco" ? "1" : "2"));
  // The newcomer has another rank's inner steps, and a switch that was given up comes a step later.
  CHECK(std::abs(late_loss(run) - references[plan]) < 0.05);
}

TEST_CASE("[L05] with too few ranks left the job saves and ends with exit code 75") {
  testing::ScratchDirectory metrics;
  auto arguments = kRecoveryProbe;
  arguments.insert(arguments.end(), {"--run_dir", ""});
  if (GENERATE(false, true)) arguments.insert(arguments.end(), {"--probe_own_loop", "true"});
  Launch launch(2, arguments, {"--max-restarts", "0", "--min-ranks", "2"},
                {{"TROUPE_FAULT", "slot=1,step=11,at=forward"}});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 75);
  CHECK_THAT(done.output, Catch::Contains("the job ended: ") && Catch::Contains("the job needs 2") &&
                              Catch::Contains("rank 1 on localhost failed: signal 9") &&
                              !Catch::Contains("rank 0 on localhost failed") && Catch::Contains("--resume auto"));
  CHECK(load_checkpoint(launch.folder() / "checkpoints", "latest").state.step == 11);
}

TEST_CASE("[R07] a program that ends of the same in two lives of a rank ends the job, which saves what there is",
          "[share]") {
  struct Case {
    std::string how, cause;
    std::vector<std::string> more = {};
  };
  const auto [how, cause, more] = GENERATE(Case{"abort", "signal 6"}, Case{"exit", "exit code 7"},
                                           Case{"leave", "exit code 0"}, Case{"hang", "a hang", {"--hang-after", "2"}});
  CAPTURE(how);
  auto arguments = kRecoveryProbe;
  arguments.insert(arguments.end(), {"--run_dir", "", "--fail_rank", "1", "--fail_step", "11", "--fail_lives", "9",
                                     "--fail_how", how, "--collective_timeout", "2"});
  Launch launch(2, arguments, more);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 70);
  CHECK_THAT(done.output, Catch::Contains("slot 1 on localhost died twice in the same way: " + cause) &&
                              Catch::Contains("a fault of the program, which a restart would repeat"));
  CHECK((testing::lives_in(done.output) == std::map<std::string, int>{{"rank 0", 1}, {"rank 1", 2}}));
  CHECK(load_checkpoint(launch.folder() / "checkpoints", "latest").state.step == 11);
}

TEST_CASE("[L05] fault 7: a newcomer or a donor that dies during the heal is replaced too", "[share]") {
  const std::string second = GENERATE("slot=2,step=11,at=heal,life=1", "slot=0,step=11,at=heal");
  const Run run(4, {}, "slot=2,step=11,at=forward;" + second);
  INFO(run.output);
  CHECK(run.recoveries().size() == 2);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] fault 5: two ranks that die at once are replaced in one recovery or two") {
  const Run run(4, {}, "slot=1,step=11,at=backward;slot=3,step=11,at=vote");
  INFO(run.output);
  CHECK_FALSE(run.recoveries().empty());
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] fault 8: a rank that stops answering is killed after three seconds and replaced") {
  const Run run(4, {}, "slot=1,step=11,at=forward,signal=19");
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("rank 1 is silent"));
  CHECK(run.recoveries().size() == 1);
  check_bits(run, undisturbed());
}

// This seed stops rank 0 for 0.7 s, kills rank 1 and breaks rank 0's connections within 6 s; the job takes 8 or more.
namespace {

const std::vector<std::string> kChaos{"--chaos", "seed=153,mtbf=2500ms,kinds=kill|stop|net"},
    kPause{"--pause_ms", "250"};

// What kChaos does and tells, wherever the job runs.
void check_chaos(const Run& run) {
  for (const auto* hurt : {"chaos: stop rank 0, 717 ms", "chaos: kill rank 1", "chaos: net rank 0"})
    CHECK_THAT(run.output, Catch::Contains(hurt));
  CHECK(run.recoveries().size() >= 2);
  const std::regex summary(
      "chaos: \\d+ faults \\(kill \\d+, stop \\d+, net \\d+\\) and \\d+ without a target, in [0-9.]+ s; \\d+ steps, "
      "goodput [0-9.]+ % of "
      "the "
      "undisturbed pace");
  CHECK(std::regex_search(run.output, summary));
}

}  // namespace

TEST_CASE(
    "[L05] fault 40: a job that --chaos hurts again and again ends with the bits of an undisturbed one, and tells its "
    "goodput",
    "[share]") {
  const Run run(4, kChaos, "", kPause);
  INFO(run.output);
  check_chaos(run);
  CHECK(run.lives().at("rank 1") >= 2);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] fault 40: --chaos hurts simulated ranks by the same schedule as processes, and changes no bit",
          "[share]") {
  auto flags = kPause;
  flags.insert(flags.end(), kChaos.begin(), kChaos.end());
  const auto run = Run::of_simulated(4, flags);
  INFO(run.output);
  check_chaos(run);
  CHECK(run.repeated.empty());
  check_bits(run, Run::of_simulated(4, {}));
}

// This seed comes for rank 0 within 2 s of the first step.
TEST_CASE("[L05] --chaos nan: gradients that are not numbers cost one step on all ranks alike, or end the job",
          "[share]") {
  const bool skip = GENERATE(true, false);
  INFO(skip);
  Launch launch(3,
                {"--probe_model", "norm", "--batch_size", "12", "--log_interval", "1", "--run_dir", "", "--pause_ms",
                 "100", "--epochs", "2", "--verify_every", "1", "--on_not_finite", skip ? "skip" : "stop"},
                {"--chaos", "seed=1,mtbf=700ms,kinds=nan"});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == (skip ? 0 : 65));
  CHECK_THAT(done.output, Catch::Contains("chaos: nan rank ") && Catch::Contains("is not finite"));
  const std::regex step("step \\d+ skipped: .*the gradient of \\S+ is not finite");
  CHECK(std::regex_search(done.output, step) == skip);
  CHECK(testing::recoveries_in(done.output).empty());
  CHECK_THAT(done.output, !Catch::Contains("holds different parameters"));
}

TEST_CASE("[L05] fault 39: a slot that dies again and again is given up") {
  std::string faults;
  for (int life = 0; life < 3; ++life) {
    faults += "slot=2,step=" + std::to_string(11 + life) + ",at=forward,life=" + std::to_string(life) + ";";
  }
  const Run run(4, {"--max-restarts", "2"}, faults);
  INFO(run.output);
  CHECK_THAT(run.output,
             Catch::Contains("it is not started again") && Catch::Contains("shrinks from 4 to 3 ranks at step 13"));
}

TEST_CASE("[L04] a slot that died too often cools down, is started again, and the job grows back", "[share]") {
  Launch launch(3, {"--batch_size", "12", "--epochs", "500", "--pause_ms", "20", "--run_dir", ""},
                {"--max-restarts", "1", "--restart-window", "15"},
                {{"TROUPE_FAULT", "slot=1,step=5,at=forward;slot=1,step=8,at=forward,life=1"}});
  REQUIRE(launch.wait_for("it is not started again for"));
  REQUIRE(launch.wait_for("shrinks from 3 to 2 ranks"));
  REQUIRE(launch.wait_for("grows from 2 to 3 ranks"));
  launch.signal(SIGTERM);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 128 + SIGTERM);
  CHECK(testing::lives_in(done.output) == std::map<std::string, int>{{"rank 0", 1}, {"rank 1", 3}, {"rank 2", 1}});
  CHECK(testing::processes_of(launch.folder().path()).empty());
}

TEST_CASE("[L04] a coordinator that dies is restarted, and takes the job over without a lost step") {
  Launch launch(
      2, {"--probe_model", "norm", "--log_interval", "1", "--run_dir", "", "--pause_ms", "20", "--epochs", "8"}, {});
  REQUIRE(launch.wait_for("step 10/"));
  const auto coordinator = testing::process_of("troupe", "coordinator", launch.pid());
  REQUIRE(coordinator > 0);
  ::kill(coordinator, SIGKILL);
  REQUIRE(launch.wait_for("takes over"));
  REQUIRE(launch.wait_for("step 40/"));
  // The new one does its work: a rank that dies now is replaced.
  const auto rank = testing::pid_said_by(launch.output(), "[rank 1] pid ");
  REQUIRE(rank > 0);
  ::kill(rank, SIGKILL);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("generation 2: 1 rank replaced"));
}
