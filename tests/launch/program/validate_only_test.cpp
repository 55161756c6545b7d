// Evaluating a model that was trained before, and nothing else.
#include <filesystem>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "launch/program/job_of.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/support/judged_net.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;
using Catch::Contains;
using testing::judged_loss;
using testing::JudgedNet;

namespace fs = std::filesystem;

namespace {

std::shared_ptr<const Dataset> judged_data(std::uint64_t seed, std::int64_t size) {
  return testing::parted_data(seed, size, 4);
}

JobOf<JudgedNet> judged_job() {
  return {.data = Datasets{judged_data(3, 32), judged_data(4, 37)}, .loss = judged_loss};
}

void judge_by_framework(Rank& rank) { train(Job(judged_job()), rank); }

template <class BatchesOf>
void judge_by(Rank& rank, bool keeps_checkpoints, const BatchesOf& batches_of) {
  rank.keep_records();
  auto net = rank.distribute([] { return JudgedNet(); });
  const auto optimizer = rank.make_optimizer(*net);
  if (keeps_checkpoints) rank.keep_checkpoints(*optimizer);
  rank.validate_on(judged_data(4, 37), [&](const Batch& batch) { return judged_loss(net, batch); });
  for (const auto& batch : batches_of(rank)) {
    rank.backward(judged_loss(net, batch));
    rank.step(*optimizer);
  }
}

void judge_by_hand(Rank& rank, bool keeps_checkpoints) {
  judge_by(rank, keeps_checkpoints, [](Rank& mine) { return mine.loader(judged_data(3, 32)); });
}
void judge_by_hand(Rank& rank) { judge_by_hand(rank, true); }

void judge_by_uneven(Rank& rank) {
  Batch batch;
  batch.input = torch::randn({3, 4});
  batch.target = torch::zeros({3}, torch::kLong);
  judge_by(rank, true, [&](Rank& mine) { return mine.uneven(std::vector<Batch>{batch, batch}); });
}

Config judged_config(const testing::ScratchDirectory& folder, const std::string& strategy) {
  Config config;
  config.strategy = strategy;
  config.batch_size = 8;
  config.epochs = 2;
  config.lr = 0.1;
  config.run_dir = folder / "run";
  config.checkpoint_dir = folder / "checkpoints";
  config.log_interval = 1;
  config.tensorboard = false;
  return config;
}

std::string judge(Config config, int ranks, const std::function<void(Rank&)>& body,
                  const std::function<std::vector<PlacedFault>(int slot, int life)>& faults = {}) {
  config.ranks = ranks;
  auto simulation = testing::simulation_of(config);
  simulation.faults = faults;
  simulation.recovery.enabled = faults != nullptr;
  std::string errors;
  testing::run_simulation(
      config, simulation,
      [&](Rank& rank) {
        body(rank);
        rank.end_loop({});
      },
      [&](int, const ErrorReport& report) { errors += report.to_string() + "\n"; });
  return errors;
}

std::vector<nlohmann::json> records_in(const std::string& folder) {
  std::vector<nlohmann::json> records;
  std::istringstream lines(testing::read_text(folder + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) records.push_back(nlohmann::json::parse(line));
  return records;
}

struct Verdict {
  double loss = -1, accuracy = -1;
  int validations = 0, steps = 0;
};
Verdict verdict_in(const std::string& folder) {
  Verdict verdict;
  for (const auto& record : records_in(folder)) {
    verdict.steps += record["kind"] == "train";
    if (record["kind"] != "validation") continue;
    ++verdict.validations;
    verdict.loss = record["validation_metrics/loss"].get<double>();
    verdict.accuracy = record["validation_metrics/accuracy"].get<double>();
  }
  return verdict;
}

// Every file below, with its bytes and the time of its last change.
std::map<std::string, std::string> contents_of(const std::string& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    contents[entry.path().string()] =
        std::to_string(entry.last_write_time().time_since_epoch().count()) + testing::read_text(entry.path().string());
  }
  return contents;
}

int run_judged(std::vector<std::string> words) {
  words.insert(words.begin(), "judged");
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  return run<JudgedNet>(static_cast<int>(arguments.size()), arguments.data(), judged_job());
}

}  // namespace

TEST_CASE(
    "[U05] validate_only gives a checkpoint's loss and accuracy at any world size, and touches nothing of its run") {
  const testing::ScratchDirectory folder;
  const std::string strategy = GENERATE("ddp", "fsdp", "zero1");
  INFO(strategy);
  auto config = judged_config(folder, strategy);
  REQUIRE(judge(config, 2, judge_by_framework) == "");
  const auto trained = verdict_in(config.run_dir);
  CHECK(trained.validations == 2);
  const auto before = contents_of(folder.path());
  config.validate_only = true;
  config.validate_every = 0;  // of training
  config.save_every = 1;
  config.resume = "latest";
  for (const int ranks : {1, 2, 3}) {
    for (const auto& body : {judge_by_framework, static_cast<void (*)(Rank&)>(judge_by_hand), judge_by_uneven}) {
      INFO(ranks << " ranks");
      const testing::ScratchDirectory records;
      config.run_dir = records / "run";
      config.batch_size = ranks == 3 ? 9 : 8;
      REQUIRE(judge(config, ranks, body) == "");
      const auto found = verdict_in(config.run_dir);
      CHECK(found.validations == 1);
      CHECK(found.steps == 0);
      CHECK(found.accuracy == trained.accuracy);
      CHECK(std::abs(found.loss - trained.loss) < 1e-5);
    }
  }
  CHECK((contents_of(folder.path()) == before));
}

TEST_CASE("[U05] validate_only evaluates a file's weights, and a program that keeps no checkpoints may do so, too") {
  const testing::ScratchDirectory folder, records;
  auto config = judged_config(folder, "ddp");
  REQUIRE(judge(config, 2, judge_by_framework) == "");
  const auto trained = verdict_in(config.run_dir);
  config.validate_only = true;
  config.init_from = config.checkpoint_dir;
  config.checkpoint_dir = records / "checkpoints";
  config.run_dir = records / "run";
  const auto without_checkpoints = [](Rank& rank) { judge_by_hand(rank, false); };
  REQUIRE(judge(config, 2,
                GENERATE_REF(std::function<void(Rank&)>(judge_by_framework),
                             std::function<void(Rank&)>(without_checkpoints))) == "");
  const auto found = verdict_in(config.run_dir);
  CHECK(found.accuracy == trained.accuracy);
  CHECK(std::abs(found.loss - trained.loss) < 1e-5);
  CHECK(found.validations == 1);
  CHECK_FALSE(fs::exists(config.checkpoint_dir));
}

TEST_CASE("[U05] a rank that dies in validate_only is replaced, and the verdict is the same") {
  const testing::ScratchDirectory folder, records;
  auto config = judged_config(folder, "ddp");
  REQUIRE(judge(config, 2, judge_by_framework) == "");
  const auto trained = verdict_in(config.run_dir);
  config.validate_only = true;
  config.resume = "latest";
  config.run_dir = records / "run";
  const auto dies = [](int slot, int life) {
    std::vector<PlacedFault> faults;
    if (slot == 1 && life == 0) faults.push_back({"validate", 8, ChaosKind::kill, {}});
    return faults;
  };
  REQUIRE(judge(config, 2, judge_by_framework, dies) == "");
  const auto found = verdict_in(config.run_dir);
  CHECK(found.validations == 1);
  CHECK(found.accuracy == trained.accuracy);
  CHECK(std::abs(found.loss - trained.loss) < 1e-5);
}

TEST_CASE("[U05] validate_only without a model, without held-out data or in a loop of other batches is refused") {
  const testing::ScratchDirectory folder;
  auto config = judged_config(folder, "ddp");
  config.validate_only = true;
  CHECK_THAT(judge(config, 1, judge_by_framework), Contains("validate_only: there is no checkpoint, so no model"));
  REQUIRE_FALSE(fs::exists(config.checkpoint_dir));
  config.validate_only = false;
  REQUIRE(judge(config, 1, judge_by_framework) == "");
  config.validate_only = true;
  config.resume = "latest";
  config.run_dir = folder / "second";
  CHECK_THAT(judge(config, 1,
                   [](Rank& rank) {
                     auto job = judged_job();
                     job.data = Datasets{judged_data(3, 32), nullptr};
                     train(Job(job), rank);
                   }),
             Contains("validate_only: this program has no held-out data"));
  config.run_dir = folder / "third";
  CHECK_THAT(judge(config, 1,
                   [](Rank& rank) {
                     auto net = rank.distribute([] { return JudgedNet(); });
                     const auto optimizer = rank.make_optimizer(*net);
                     rank.step(*optimizer);
                   }),
             Contains("validate_only: this program's loop does not take its batches from Troupe"));
}

TEST_CASE("[U05] a program with --validate-only reads the newest run, keeps records apart, and runs/latest stays") {
  const testing::ScratchDirectory folder;
  const auto home = fs::current_path();
  fs::current_path(folder.path());
  const auto runs = [] {
    std::vector<std::string> folders;
    for (const auto& entry : fs::directory_iterator("runs")) {
      if (!entry.is_symlink()) folders.push_back(entry.path().string());
    }
    return folders;
  };
  CHECK(run_judged({"--ranks", "2", "--batch_size", "8", "--epochs", "1"}) == 0);
  const auto trained = runs();
  REQUIRE(trained.size() == 1);
  const auto before = contents_of(trained[0]);
  CHECK(run_judged({"--ranks", "1", "--batch_size", "8", "--validate-only", "--resume", "latest"}) == 0);
  CHECK(run_judged({"--ranks", "1", "--batch_size", "8", "--resume", trained[0] + "@4", "--validate-only"}) == 0);
  CHECK(runs().size() == 3);
  for (const auto& apart : runs()) {
    if (apart == trained[0]) continue;
    const auto verdict = verdict_in(apart);
    CHECK(verdict.validations == 1);
    CHECK(verdict.accuracy == verdict_in(trained[0]).accuracy);
    CHECK_FALSE(fs::exists(apart + "/checkpoints"));
  }
  CHECK(fs::read_symlink("runs/latest").string() == fs::path(trained[0]).filename().string());
  CHECK((contents_of(trained[0]) == before));
  CHECK(run_judged({"--ranks", "1", "--validate-only"}) == 2);
  CHECK(run_judged({"--ranks", "1", "--validate-only", "--resume", "latest", "--run_dir", trained[0]}) == 2);
  CHECK((contents_of(trained[0]) == before));
  fs::current_path(home);
}
