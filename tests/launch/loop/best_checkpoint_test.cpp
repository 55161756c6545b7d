// The best checkpoint after a save that failed: later validations have to beat the best one on disk.
#include <filesystem>

#include "launch/testing/cluster.hpp"
#include "tensor_io/checkpoint/checkpoint_store.hpp"
#include "tests/catch.hpp"
#include "tests/launch/testing/points.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe::testing;

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kStepsInEpoch = 4;  // of points() in batches of 24

thread_local const troupe::Rank* rank_of_thread = nullptr;

// The held-out loss at the end of epoch i is losses[i]. If `fails`, the save that follows the second one fails: a
// folder has the name of the file `best` until the next validation.
troupe::Job validated_points(const std::string& folder, const std::vector<double>& losses, bool fails = true) {
  auto job = points();
  job.data = [](const troupe::Config&) {
    return troupe::Datasets{std::make_shared<Points>(), std::make_shared<Points>()};
  };
  job.loss = [losses, loss = job.loss](torch::nn::Module& model, const troupe::Batch& batch,
                                       const troupe::Config& config) {
    if (at::GradMode::is_enabled()) return loss(model, batch, config);
    return troupe::Loss(
        torch::tensor(losses.at(static_cast<std::size_t>(rank_of_thread->steps_done() / kStepsInEpoch - 1))));
  };
  job.callbacks = [folder, fails](troupe::Rank& rank, torch::nn::Module&) {
    rank_of_thread = &rank;
    troupe::Callbacks callbacks;
    if (!fails) return callbacks;
    callbacks.on_validation = [folder, &rank](const troupe::ValidationReport& report) {
      const fs::path best = fs::path(folder) / "best", kept = fs::path(folder) / "kept";
      if (rank.rank() != 1) return;
      if (report.epoch == 1 && !fs::exists(kept)) {  // the save of step 6 has waited for that of step 4
        fs::rename(best, kept);
        fs::create_directory(best);
      } else if (report.epoch == 2 && fs::exists(kept)) {
        fs::remove(best);
        fs::rename(kept, best);
      }
    };
    return callbacks;
  };
  return job;
}

Settings settings_for(const std::string& folder) {
  return {.epochs = 4,
          .batch_size = 24,
          .more = {{"checkpoint_dir", folder}, {"save_every", "6"}, {"validate_every", "1"}, {"keep_last", "9"}}};
}

void train_to_end(const troupe::Config& config, const std::vector<double>& losses, bool fails) {
  const auto job = validated_points(config.checkpoint_dir, losses, fails);
  const auto train = [&job](troupe::Rank& rank) { troupe::train(job, rank); };
  for (const auto& error : run_program(2, config, train)) CHECK(error.empty());
}

}  // namespace

TEST_CASE("[C02] a best checkpoint that could not be saved is not what later ones have to beat") {
  const ScratchDirectory folder;
  const auto job = validated_points(folder.path(), {0.5, 0.1, 0.3, 0.4});
  Cluster cluster({.ranks_per_host = 3});
  const auto [rank, place, step] = GENERATE(table<int, std::string, std::int64_t>(
      {{-1, "", 0}, {0, "forward", 9}, {0, "validate", 12}, {2, "validate", 12}}));
  INFO(rank << " " << place << " " << step);
  if (rank >= 0) cluster.kill(Rank{rank}, At{place, step});
  const auto run = cluster.train(job, settings_for(folder.path()));
  INFO(run.error());
  CHECK(run.exit_code() == 0);
  CHECK(run.missed().empty());
  CHECK(troupe::read_pointer(folder.path(), "best") == 12);
}

TEST_CASE("[C02] a best checkpoint whose save a death cut off is not what later ones have to beat") {
  const ScratchDirectory folder;
  Cluster cluster({.ranks_per_host = 2, .seed = GENERATE(1u, 2u)});
  cluster.kill(Rank{GENERATE(0, 1)}, At{"save", 8});
  const auto run =
      cluster.train(validated_points(folder.path(), {0.5, 0.1, 0.3, 0.4}, false), settings_for(folder.path()));
  CHECK(run.exit_code() == 0);
  const bool saved = fs::exists(folder / "step-00000008");  // all parts were written before
  CHECK(troupe::read_pointer(folder.path(), "best") == (saved ? 8 : 12));
}

TEST_CASE("[C02] a resumed run has to beat the best checkpoint on disk") {
  const ScratchDirectory folder;
  troupe::Config config;
  config.ranks = 2;
  config.run_dir = "";
  config.checkpoint_dir = folder.path();
  config.batch_size = 24;
  config.validate_every = 1;
  config.save_every = 6;
  config.keep_last = 9;
  config.epochs = 3;
  train_to_end(config, {0.5, 0.1, 0.6}, true);
  CHECK(troupe::read_pointer(folder.path(), "best") == 4);
  config.resume = "latest";
  config.epochs = 6;
  train_to_end(config, {0.5, 0.1, 0.6, 0.4, 0.3, 0.35}, false);
  CHECK(troupe::read_pointer(folder.path(), "best") == 20);
}

TEST_CASE("[C02] a run that goes on from an earlier checkpoint has the best one of that branch") {
  const ScratchDirectory folder;
  troupe::Config config;
  config.ranks = 2;
  config.run_dir = "";
  config.checkpoint_dir = folder / "c";
  config.batch_size = 24;
  config.validate_every = 1;
  config.save_every = 4;
  config.keep_last = 9;
  config.epochs = 3;
  train_to_end(config, {0.5, 0.3, 0.1}, false);
  CHECK(troupe::read_pointer(folder / "c", "best") == 12);
  config.epochs = 4;
  config.keep_last = 2;
  SECTION("which replaces the former best one, and is not removed") {
    config.resume = folder / "c/step-00000004";
    train_to_end(config, {0.5, 0.9, 0.8, 0.7}, false);
    CHECK(troupe::read_pointer(folder / "c", "best") == 4);
    CHECK(fs::exists(folder / "c/step-00000004"));
    CHECK_FALSE(fs::exists(folder / "c/step-00000008"));
  }
  SECTION("and if that one is gone, or in another folder, the best one from there on") {
    config.resume = folder / "c/step-00000008";
    if (GENERATE(false, true)) {
      config.checkpoint_dir = folder / "d";
    } else {
      train_to_end(config, {0.5, 0.3, 0.9, 0.9}, false);  // step 8 is the best one of this branch
      CHECK(troupe::read_pointer(folder / "c", "best") == 8);
      config.resume = folder / "c/step-00000012";
      config.epochs = 5;
      fs::remove_all(folder / "c/step-00000008");
    }
    train_to_end(config, {0.5, 0.3, 0.9, 0.7, 0.8}, false);
    CHECK(troupe::read_pointer(config.checkpoint_dir, "best") == 16);
  }
}
