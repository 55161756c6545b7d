// A job of processes loses ranks in every phase of a step, and goes on as if nothing had happened (notes/faults: matrix 1 to 5, 7 to 9).
#include <cstring>
#include <map>
#include <regex>

#include <nlohmann/json.hpp>

#include "tensor_io/checkpoint_reader.hpp"
#include "tests/catch.hpp"
#include "tests/support/launch.hpp"

using namespace troupe;
using testing::Launch;

namespace {

const std::vector<std::string> kProbe = {"--probe_model",  "norm", "--epochs",     "2", "--lr", "0.1",
                                         "--log_interval", "1",    "--save_every", "8"};

std::map<std::int64_t, double> losses_of(const std::string& text) {
  std::map<std::int64_t, double> losses;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto entry = nlohmann::json::parse(line);
    if (entry["kind"] == "train") losses[entry["step"].get<std::int64_t>()] = entry["loss_metrics/global_avg_loss"].get<double>();
  }
  return losses;
}

// Runs the probe; TROUPE_FAULT is `fault`, if it is not empty.
struct Run {
  Run(int nproc, std::vector<std::string> flags, const std::string& fault, std::vector<std::string> more = {}) {
    std::map<std::string, std::string> environment;
    if (!fault.empty()) environment["TROUPE_FAULT"] = fault;
    auto arguments = kProbe;
    arguments.insert(arguments.end(), more.begin(), more.end());
    testing::ScratchDirectory metrics;
    arguments.insert(arguments.end(), {"--run_dir", metrics / "run"});
    Launch launch(nproc, arguments, flags, environment);
    const auto done = launch.finish();
    output = done.output;
    code = done.code;
    INFO(output);
    REQUIRE(code == 0);
    state = load_checkpoint(launch.folder() / "checkpoints", "latest").state;
    losses = losses_of(testing::read_text(metrics / "run/metrics.jsonl"));
    CHECK(testing::processes_of(launch.folder().path()).empty());
  }
  // How often the job's memberships changed, and how long each took.
  std::vector<int> recoveries() const {
    std::vector<int> found;
    const std::regex line("troupe: generation \\d+: .*\\(after (\\d+) ms\\)");
    for (auto i = std::sregex_iterator(output.begin(), output.end(), line); i != std::sregex_iterator(); ++i)
      found.push_back(std::stoi((*i)[1]));
    return found;
  }
  std::map<std::string, int> lives() const {
    std::map<std::string, int> found;
    const std::regex line("\\[((rank|spare) \\d+)\\] pid");
    for (auto i = std::sregex_iterator(output.begin(), output.end(), line); i != std::sregex_iterator(); ++i) ++found[(*i)[1]];
    return found;
  }
  std::string output;
  int code = -1;
  TrainingState state;
  std::map<std::int64_t, double> losses;
};

void check_bits(const Run& run, const Run& reference) {
  CHECK(run.state.step == reference.state.step);
  REQUIRE(run.state.tensors.size() == reference.state.tensors.size());
  for (std::size_t i = 0; i < run.state.tensors.size(); ++i) {
    const auto& [name, tensor] = run.state.tensors[i];
    INFO(name);
    CHECK(name == reference.state.tensors[i].first);
    CHECK(std::memcmp(tensor.contiguous().data_ptr(), reference.state.tensors[i].second.contiguous().data_ptr(), tensor.nbytes()) == 0);
  }
  CHECK((run.losses == reference.losses));
}

const Run& undisturbed() {
  static const Run run(4, {}, "");
  return run;
}

}  // namespace

TEST_CASE("[L05] a rank killed in any phase of a step is replaced, and the job ends with the bits of an undisturbed one") {
  const std::string phase =
      GENERATE("data", "forward", "backward", "buckets", "collective", "reduced", "vote", "voted", "committed", "optimizer");
  const int slot = GENERATE(0, 2);
  INFO(phase << ", slot " << slot);
  const Run run(4, {}, "slot=" + std::to_string(slot) + ",step=11,at=" + phase, {"--first_bucket_mb", "0.001", "--bucket_cap_mb", "0.001"});
  const auto& reference = undisturbed();
  INFO(run.output);
  CHECK(run.recoveries().size() == 1);
  for (const auto& [rank, lives] : run.lives()) CHECK(lives == (rank == "rank " + std::to_string(slot) ? 2 : 1));
  check_bits(run, reference);
}

TEST_CASE("[L05] a rank killed during a save is replaced, and the checkpoint is written") {
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

TEST_CASE("[L05] with too few ranks left the job saves and ends with exit code 75") {
  testing::ScratchDirectory metrics;
  auto arguments = kProbe;
  arguments.insert(arguments.end(), {"--run_dir", ""});
  Launch launch(2, arguments, {"--max-restarts", "0", "--min-ranks", "2"}, {{"TROUPE_FAULT", "slot=1,step=11,at=forward"}});
  const auto done = launch.finish();
  INFO(done.output);
  CHECK(done.code == 75);
  CHECK_THAT(done.output, Catch::Contains("the job needs 2"));
  CHECK(load_checkpoint(launch.folder() / "checkpoints", "latest").state.step == 11);
}

TEST_CASE("[L05] a newcomer or a donor that dies during the heal is replaced too") {
  const std::string second = GENERATE("slot=2,step=11,at=heal,life=1", "slot=0,step=11,at=heal");
  const Run run(4, {}, "slot=2,step=11,at=forward;" + second);
  INFO(run.output);
  CHECK(run.recoveries().size() == 2);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] two ranks that die at once are replaced in one recovery or two") {
  const Run run(4, {}, "slot=1,step=11,at=backward;slot=3,step=11,at=vote");
  INFO(run.output);
  CHECK(run.recoveries().size() >= 1);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] a rank that stops answering is killed after three seconds and replaced") {
  const Run run(4, {}, "slot=1,step=11,at=forward,signal=19");
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("rank 1 is silent"));
  CHECK(run.recoveries().size() == 1);
  check_bits(run, undisturbed());
}

TEST_CASE("[L05] a slot that dies again and again is given up") {
  std::string faults;
  for (int life = 0; life < 3; ++life) {
    faults += "slot=2,step=" + std::to_string(11 + life) + ",at=forward,life=" + std::to_string(life) + ";";
  }
  const Run run(4, {"--max-restarts", "2"}, faults);
  INFO(run.output);
  CHECK_THAT(run.output, Catch::Contains("it is not started again") && Catch::Contains("shrinks from 4 to 3 ranks at step 13"));
}

TEST_CASE("[L04] a coordinator that dies is restarted, and takes the job over without a lost step") {
  Launch launch(2, {"--probe_model", "norm", "--log_interval", "1", "--run_dir", "", "--pause_ms", "20", "--epochs", "8"}, {});
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
