// Sharded strategies in jobs of processes: resume from disk, and a lost rank.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>

#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tests/catch.hpp"
#include "tests/support/launch.hpp"
#include "tests/support/recovery_run.hpp"

using namespace troupe;
using testing::Launch;

namespace {

NamedTensors latest(const Launch& launch) {
  return load_checkpoint(launch.folder() / "checkpoints", "latest").state.tensors;
}

}  // namespace

TEST_CASE("[F06] sharded processes that are killed after a checkpoint resume bit-equal to the uninterrupted run",
          "[share]") {
  const std::string strategy = GENERATE("zero1", "zero2", "fsdp");
  INFO(strategy);
  const std::vector<std::string> run = {"--strategy", strategy, "--optimizer",  "adamw", "--lr",        "0.01",
                                        "--epochs",   "2",      "--save_every", "8",     "--clip_norm", "1"};
  Launch uninterrupted(2, run);
  const auto whole = uninterrupted.finish();
  INFO(whole.output);
  REQUIRE(whole.code == 0);

  auto dying = run;
  dying.insert(dying.end(), {"--fail_rank", "1", "--fail_step", "20", "--fail_how", "kill"});
  Launch killed(2, dying);
  CHECK(killed.finish().code != 0);
  auto resuming = run;
  resuming.insert(resuming.end(), {"--resume", "latest"});
  Launch resumed(2, resuming, {"--no-recovery"}, {}, killed.shared_folder());
  const auto done = resumed.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  CHECK_THAT(done.output, Catch::Contains("resume from"));
  const auto expected = latest(uninterrupted), seen = latest(resumed);
  REQUIRE(expected.size() == seen.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(expected[i].first);
    CHECK(expected[i].first == seen[i].first);
    CHECK((at::equal(expected[i].second, seen[i].second)));
  }
}

TEST_CASE(
    "[C01] training on 4, 3, 1 and 2 ranks through checkpoints, each with another strategy, equals uninterrupted "
    "training to 1e-4") {
  const auto train = [](int ranks, const std::string& strategy, int steps, const Launch* before) {
    std::vector<std::string> arguments{"--strategy",   strategy, "--probe_model", "plain",
                                       "--batch_size", "12",     "--optimizer",   "adamw",
                                       "--lr",         "0.01",   "--max_steps",   std::to_string(steps)};
    if (before != nullptr) arguments.insert(arguments.end(), {"--resume", "latest"});
    auto launch = before != nullptr
                      ? std::make_unique<Launch>(ranks, arguments, std::vector<std::string>{},
                                                 std::map<std::string, std::string>{}, before->shared_folder())
                      : std::make_unique<Launch>(ranks, arguments);
    const auto done = launch->finish();
    INFO(done.output);
    REQUIRE(done.code == 0);
    return launch;
  };
  auto moved = train(4, "fsdp", 8, nullptr);
  moved = train(3, "ddp", 16, moved.get());
  moved = train(1, "zero2", 24, moved.get());
  moved = train(2, "fsdp", 30, moved.get());
  const auto expected = latest(*train(2, "ddp", 30, nullptr)), seen = latest(*moved);
  REQUIRE(expected.size() == seen.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(expected[i].first);
    CHECK(expected[i].first == seen[i].first);
    CHECK((at::allclose(expected[i].second, seen[i].second, 0, 1e-4)));
  }
}

namespace {

const std::vector<std::string> kSharded = {"--optimizer", "adamw", "--lr", "0.01", "--snapshot_every", "5"};

testing::RecoveryRun sharded_run(std::vector<std::string> how, const std::string& fault,
                                 std::vector<std::string> flags = {}) {
  how.insert(how.end(), kSharded.begin(), kSharded.end());
  return {4, std::move(flags), fault, how};
}

}  // namespace

namespace {

// A case for each way: all in one would take longer than a case may.
void goes_on_with_the_same_bits(const std::vector<std::string>& how) {
  const auto reference = sharded_run(how, "");
  for (const std::string fault : {"slot=2,step=13,at=collective", "slot=0,step=17,at=voted",
                                  "slot=1,step=20,at=optimizer", "slot=3,step=15,at=snapshot"}) {
    INFO(fault);
    const auto run = sharded_run(how, fault);
    INFO(run.output);
    CHECK(run.recoveries().size() == 1);
    check_bits(run, reference);
  }
}

}  // namespace

TEST_CASE("[C04] fsdp goes on without a dead rank from the copy in another's memory, with an undisturbed run's bits",
          "[share]") {
  goes_on_with_the_same_bits({"--strategy", "fsdp"});
}

TEST_CASE("[C04] zero2 goes on without a dead rank from the copy in another's memory, with an undisturbed run's bits",
          "[share]") {
  goes_on_with_the_same_bits({"--strategy", "zero2"});
}

TEST_CASE("[C04] fsdp in memory of each rank's own goes on without a dead rank, with an undisturbed run's bits",
          "[share]") {
  goes_on_with_the_same_bits({"--strategy", "fsdp", "--fsdp_mapped", "false"});
}

TEST_CASE("[C04] fsdp over Gloo goes on without a dead rank, with an undisturbed run's bits", "[share]") {
  goes_on_with_the_same_bits({"--strategy", "fsdp", "--backend", "gloo"});
}

TEST_CASE("[C04] hybrid_shard goes on without a dead rank, with an undisturbed run's bits", "[share]") {
  goes_on_with_the_same_bits({"--strategy", "fsdp", "--fsdp_mode", "hybrid_shard", "--fsdp_shard_size", "2"});
}

TEST_CASE(
    "[C04] a sharded job that loses a rank between two steps, or after the last, runs those since its snapshot again",
    "[share]") {
  const std::vector<std::string> how{"--strategy", GENERATE("fsdp", "zero2")};
  INFO(how.back());
  const auto reference = sharded_run(how, "");
  for (const std::string fault : {"slot=1,step=16,at=validate", "slot=0,step=32,at=validate", "slot=2,step=24,at=save",
                                  "slot=1,step=32,at=save"}) {
    INFO(fault);
    const auto run = sharded_run(how, fault);
    INFO(run.output);
    CHECK(run.recoveries().size() == 1);
    CHECK(run.lives() != reference.lives());
    check_bits(run, reference);
  }
}

// The newcomer has a trace to gather before anything else, the others are in the middle of a validation.
TEST_CASE("[T08] a sharded job that goes back to the end of a trace's window gathers it on all ranks") {
  const auto run =
      sharded_run({"--strategy", "fsdp", "--profile", "steps=12:15,operators=off"}, "slot=1,step=16,at=validate");
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  CHECK_THAT(run.output, Catch::Contains("trace.json: 4 ranks, steps 12 to 14, "));
  check_bits(run, sharded_run({"--strategy", "fsdp"}, ""));
}

TEST_CASE("[C04] a sharded loop of one's own, which catches nothing, outlives a rank that dies anywhere in a step",
          "[share]") {
  const auto run = [](const std::string& fault) {
    Launch launch(2,
                  {"--probe_own_loop", "true", "--probe_model", "wide", "--probe_width", "64", "--strategy", "fsdp",
                   "--fsdp_mapped", "false", "--snapshot_every", "5", "--epochs", "2", "--lr", "0.01"},
                  {}, {{"TROUPE_FAULT", fault}});
    const auto done = launch.finish();
    INFO(done.output);
    CHECK(done.code == 0);
    CHECK((done.output.find("generation 2") != std::string::npos) == !fault.empty());
    return latest(launch);
  };
  const auto reference = run("");
  for (const std::string fault : {"slot=1,step=13,at=data", "slot=0,step=13,at=forward", "slot=1,step=13,at=forward",
                                  "slot=1,step=13,at=backward", "slot=1,step=13,at=collective"}) {
    INFO(fault);
    const auto state = run(fault);
    REQUIRE(state.size() == reference.size());
    for (std::size_t i = 0; i < state.size(); ++i) CHECK((at::equal(state[i].second, reference[i].second)));
  }
}

TEST_CASE("[C04] a sharded job shrinks, and its loss stays that of four ranks") {
  const std::vector<std::string> how = {"--strategy", "fsdp", "--probe_model", "plain", "--batch_size", "12"};
  const auto reference = sharded_run(how, "");
  const auto run = sharded_run(how, "slot=3,step=13,at=forward", {"--max-restarts", "0"});
  INFO(run.output);
  CHECK_THAT(run.output,
             Catch::Contains("shrinks from 4 to 3 ranks") && Catch::Contains("from the snapshot of step 10"));
  REQUIRE(run.losses.size() == reference.losses.size());
  for (const auto& [step, loss] : reference.losses) CHECK(run.losses.at(step) == Approx(loss).margin(1e-4));
}

TEST_CASE("[C04] fault 6: a rank and its buddy that die together leave their shards in the memory that all ranks share",
          "[share]") {
  const std::string strategy = GENERATE("zero1", "fsdp");
  INFO(strategy);
  const auto reference = sharded_run({"--strategy", strategy}, "");
  const auto run =
      sharded_run({"--strategy", strategy}, "slot=1,step=13,at=vote;slot=2,step=13,at=vote;slot=3,step=13,at=vote");
  INFO(run.output);
  CHECK(run.output.find("all ranks are started again") == std::string::npos);
  CHECK(run.lives().at("rank 0") == 1);
  check_bits(run, reference);
}

TEST_CASE(
    "[C04] fault 6: without memory in common a rank and its buddy that die together take a shard with them, and the "
    "job begins anew "
    "from its last checkpoint",
    "[share]") {
  const std::string strategy = GENERATE("zero1", "fsdp");
  INFO(strategy);
  const std::vector<std::string> how{"--strategy", strategy, "--backend", "gloo"};
  const auto reference = sharded_run(how, "");
  const auto run = sharded_run(how, "slot=1,step=13,at=vote;slot=2,step=13,at=vote");
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("took its shard of the state with it") &&
                             Catch::Contains("all ranks are started again") && Catch::Contains("resume from") &&
                             Catch::Contains("step 8"));
  for (const auto& [rank, lives] : run.lives()) CHECK(lives >= 2);
  check_bits(run, reference);
}

TEST_CASE("[C04] fault 6: a job that may not begin anew ends with what is lost and what to do") {
  Launch launch(4, {"--strategy", "fsdp", "--backend", "gloo"}, {"--max-restarts", "0"},
                {{"TROUPE_FAULT", "slot=1,step=5,at=vote;slot=2,step=5,at=vote"}});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 75);
  CHECK_THAT(done.output, Catch::Contains("took its shard of the state with it") && Catch::Contains("--resume auto"));
}

TEST_CASE(
    "[C04] fault 6: replicas that all die at once begin anew from the last checkpoint, or where there is none from the "
    "start",
    "[share]") {
  const int step = GENERATE(13, 3);
  std::string faults;
  for (int slot = 0; slot < 4; ++slot)
    faults += "slot=" + std::to_string(slot) + ",step=" + std::to_string(step) + ",at=forward;";
  const testing::RecoveryRun run(4, {}, faults);
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("is left: all ranks are started again"));
  CHECK((run.output.find("resume from") != std::string::npos) == (step == 13));
  check_bits(run, testing::undisturbed());
}
