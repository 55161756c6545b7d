// Models that are built without memory, in jobs of processes.
#include <ATen/ops/equal.h>

#include <regex>

#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tests/catch.hpp"
#include "tests/support/launch.hpp"
#include "tests/support/recovery_run.hpp"
#include "tests/support/sanitized.hpp"

using namespace troupe;
using testing::Launch;

namespace {

struct Trained {
  NamedTensors state;
  std::string output;
  std::vector<int> peaks;  // MiB, of each rank until it has its part of the model
};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Trained train(int ranks, const std::vector<std::string>& how, const std::vector<std::string>& more = {},
              std::shared_ptr<testing::ScratchDirectory> folder = {}) {
  if (!folder) folder = std::make_shared<testing::ScratchDirectory>();
  Launch launch(ranks, std::vector<std::string>{"--probe_model", "wide", "--lr", "0.01"} + how + more,
                {"--no-recovery"}, {}, folder);
  const auto done = launch.finish();
  INFO(done.output);
  REQUIRE(done.code == 0);
  Trained trained{load_checkpoint(*folder / "checkpoints", "latest").state.tensors, done.output, {}};
  const std::regex line("peak (-?\\d+) MiB");
  for (auto i = std::sregex_iterator(done.output.begin(), done.output.end(), line); i != std::sregex_iterator(); ++i)
    trained.peaks.push_back(std::stoi((*i)[1]));
  REQUIRE(trained.peaks.size() == static_cast<std::size_t>(ranks));
  return trained;
}

void check_same(const NamedTensors& expected, const NamedTensors& seen) {
  REQUIRE(expected.size() == seen.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO(expected[i].first);
    CHECK(expected[i].first == seen[i].first);
    CHECK((at::equal(expected[i].second, seen[i].second)));
  }
}

const std::vector<std::string> kDeferred = {"--deferred_init", "true"};

}  // namespace

TEST_CASE("[F08] no rank ever holds a model that gets its values unit by unit", "[share]") {
  NOT_UNDER_ADDRESS_SANITIZER("it keeps what was freed");
  const std::vector<std::string> how{"--strategy",  "fsdp", "--probe_width",    "1448",
                                     "--max_steps", "1",    "--snapshot_every", "0"};
  constexpr int kUnit = 8, kModel = 16 * kUnit,
                kSlack = 32;  // MiB; slack: pages of LibTorch's code, memory of the collectives
  const auto whole = train(4, how);
  const bool known = whole.peaks[0] >= 0;
  if (!known) WARN("NOT RUN: this kernel does not reset the peak of a process's memory");
  for (const auto peak : whole.peaks) CHECK((peak > kModel || !known));
  for (const std::vector<std::string>& mode : {std::vector<std::string>{"--fsdp_mode", "full_shard"},
                                               {"--fsdp_mode", "full_shard", "--fsdp_mapped", "false"},
                                               {"--fsdp_mode", "shard_grad_op"},
                                               {"--fsdp_mode", "hybrid_shard", "--fsdp_shard_size", "4"}}) {
    INFO(mode[1] << " " << mode.back());
    const auto deferred = train(4, how, mode + kDeferred);
    for (const auto peak : deferred.peaks)
      CHECK(peak < 2 * kModel / 4 + 2 * kUnit + kSlack);  // shards of values and gradients, two units
    check_same(whole.state, deferred.state);
  }
}

TEST_CASE("[F08] a job that defers its model resumes with the same bits") {
  const std::vector<std::string> how{"--strategy", GENERATE("fsdp", "ddp"), "--probe_width",
                                     "160",        "--optimizer",           "adamw"};
  INFO(how[1]);
  const auto folder = std::make_shared<testing::ScratchDirectory>();
  train(2, how, std::vector<std::string>{"--max_steps", "4"} + kDeferred, folder);
  const auto resumed =
      train(2, how, std::vector<std::string>{"--max_steps", "8", "--resume", "latest"} + kDeferred, folder);
  CHECK_THAT(resumed.output, Catch::Contains("resume from"));
  check_same(train(2, how, {"--max_steps", "8"}).state, resumed.state);
}

TEST_CASE("[F08] a job that defers its model begins from a saved one with the same bits") {
  const std::vector<std::string> how{"--strategy", "fsdp", "--probe_width", "160", "--max_steps", "3"};
  const auto folder = std::make_shared<testing::ScratchDirectory>();
  train(2, how, {}, folder);
  const std::vector<std::string> from{"--init_from", *folder / "checkpoints", "--seed", "9"};
  check_same(train(2, how, from).state, train(2, how, from + kDeferred).state);
}

TEST_CASE("[F08] a newcomer's deferred model gets the values of the others'", "[share]") {
  const std::string strategy = GENERATE("fsdp", "ddp");
  INFO(strategy);
  const std::vector<std::string> how = {"--probe_model", "wide",   "--probe_width",    "160",
                                        "--strategy",    strategy, "--snapshot_every", "5"};
  const testing::RecoveryRun reference(2, {}, "", how);
  for (const std::string fault : {"slot=1,step=13,at=collective", "slot=0,step=17,at=voted"}) {
    INFO(fault);
    const testing::RecoveryRun run(2, {}, fault, how + kDeferred);
    INFO(run.output);
    CHECK(run.recoveries().size() == 1);
    check_bits(run, reference);
  }
}

TEST_CASE(
    "[F08] a model's constructor that asks for a deferred parameter's address ends the job with one line that says "
    "what to do") {
  Launch launch(2, std::vector<std::string>{"--probe_model", "wide", "--probe_width", "160", "--probe_reads", "true"} +
                       kDeferred);
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code != 0);
  CHECK_THAT(done.output,
             Catch::Contains("this tensor has no memory yet") && Catch::Contains("call troupe::materialize(tensor)"));
}
