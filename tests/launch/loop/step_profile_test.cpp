#include "launch/loop/step_profile.hpp"

#include <atomic>

#include "launch/loop/rank.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"
#include "troupe/testing.hpp"

using namespace troupe;

TEST_CASE("a profile's parts add up to the step, and overlap is what the reducer did while compute did not wait") {
  StepProfile profile;
  StepReport report;
  report.step_ms = 100;
  report.exposed_ms = 10;
  report.optimizer_ms = 5;
  report.reduce_ms = 40;
  report.buckets = 3;
  report.launched_before_end = 2;
  report.data_ms = 15;
  profile.add(report, 60);
  report.exposed_ms = 50;  // waited for a slow rank: longer than the reducer worked
  profile.add(report, 20);
  const auto table = profile.table();
  INFO(table);
  CHECK_THAT(table, Catch::Contains("mean of 2 steps"));
  CHECK_THAT(table, Catch::Contains("data wait                                15.000 ms   15.0 %"));
  CHECK_THAT(table, Catch::Contains("forward and backward                     40.000 ms   40.0 %"));
  CHECK_THAT(table, Catch::Contains("exposed communication, with the vote     30.000 ms   30.0 %"));
  CHECK_THAT(table, Catch::Contains("optimizer                                 5.000 ms    5.0 %"));
  CHECK_THAT(table, Catch::Contains("rest: validation, checkpoints, logs      10.000 ms   10.0 %"));
  CHECK_THAT(table, Catch::Contains("step                                    100.000 ms  100.0 %"));
  CHECK_THAT(table, Catch::Contains("reducer busy, beside these               40.000 ms"));
  CHECK_THAT(table, Catch::Contains("37.5 % of that or more"));  // 30 of the first step's 40, nothing of the second's
  CHECK_THAT(table, Catch::Contains("2.0 of 3.0 buckets"));
}

TEST_CASE("a profile without steps says so, and one rank alone has no reducer to show") {
  StepProfile profile;
  CHECK(profile.table() == "profile: no step was made\n");
  StepReport report;
  report.step_ms = 1;
  profile.add(report, 1);
  CHECK(profile.table().find("reducer") == std::string::npos);
}

namespace {

StepReport half_hidden() {
  StepReport report;
  report.step_ms = 100;
  report.reduce_ms = 40;
  report.exposed_ms = 20;
  report.inside_ms = 10;
  return report;
}

}  // namespace

TEST_CASE(
    "[T08] overlap is the hidden share of the reducer's time, exposed communication what compute waited for, gathers "
    "too") {
  StepProfile profile;
  CHECK(profile.overlap() == 1);  // nothing was to be hidden
  CHECK(profile.exposed_communication() == 0);
  profile.add(half_hidden(), 50);
  CHECK(profile.overlap() == Approx(0.5));
  CHECK(profile.exposed_communication() == Approx(0.3));
  StepProfile other;
  auto report = half_hidden();
  report.exposed_ms = 0;
  other.add(report, 50);
  profile.add(other);
  CHECK(profile.steps() == 2);
  CHECK(profile.overlap() == Approx(0.75));
  CHECK(profile.exposed_communication() == Approx(0.2));
  CHECK_THAT(profile.describe_overlap(), Catch::Contains("overlap 0.750, exposed communication 0.200 of 2 steps: "
                                                         "40.000 ms a step in collectives, 30.000 of them hidden"));
}

TEST_CASE("[T08] REQUIRE_OVERLAP holds where enough was hidden") {
  profile_of_process().reset();
  StepProfile profile;
  profile.add(half_hidden(), 50);
  profile_of_process().add(profile);
  CHECK(overlap() == Approx(0.5));
  CHECK(exposed_communication() == Approx(0.3));
  REQUIRE_OVERLAP(0.5);
}

TEST_CASE("[T08] REQUIRE_OVERLAP fails where less was hidden", "[!shouldfail]") {
  profile_of_process().reset();
  StepProfile profile;
  profile.add(half_hidden(), 50);
  profile_of_process().add(profile);
  REQUIRE_OVERLAP(0.51);
}

TEST_CASE("[T08] REQUIRE_OVERLAP fails where no step was made", "[!shouldfail]") {
  profile_of_process().reset();
  REQUIRE_OVERLAP(0);
}

TEST_CASE("[T08] a lone rank has no exposed communication") {
  testing::ScratchDirectory folder;
  Config config;
  config.ranks = 1;
  config.max_steps = 6;
  config.batch_size = 8;
  config.run_dir = "";
  config.checkpoint_dir = folder.path();
  const auto errors = testing::run_program(1, config, [&](troupe::Rank& rank) {
    auto model = rank.distribute(torch::nn::Linear(4, 2));
    auto optimizer = rank.make_optimizer(*model);
    const auto input = torch::randn({64, 4});
    for (const auto& batch : rank.loader(std::make_shared<TensorDataset>(input, torch::zeros({64}, torch::kLong)))) {
      rank.backward(torch::nn::functional::cross_entropy(model(batch.input), batch.target));
      CHECK(rank.step(*optimizer).exposed_ms == 0);
    }
  });
  CHECK(errors == std::vector<std::string>{""});
}

TEST_CASE("[T08] after a run in this process overlap and exposed communication are those of all its ranks") {
  testing::ScratchDirectory folder;
  profile_of_process().add(StepProfile());
  std::vector<std::string> words{"probe",
                                 "--ranks=2",
                                 "--max_steps=6",
                                 "--epochs=1",
                                 "--batch_size=8",
                                 "--run_dir=",
                                 "--checkpoint_dir=" + (folder / "c")};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  std::atomic<int> shares_seen = 0;
  const int code = troupe::main(static_cast<int>(arguments.size()), arguments.data(), [&](troupe::Rank& rank) {
    auto model = rank.distribute(torch::nn::Linear(4, 2));
    auto optimizer = rank.make_optimizer(*model);
    const auto input = torch::randn({64, 4});
    for (const auto& batch : rank.loader(std::make_shared<TensorDataset>(input, torch::zeros({64}, torch::kLong)))) {
      rank.backward(torch::nn::functional::cross_entropy(model(batch.input), batch.target));
      rank.step(*optimizer);
    }
    const double hidden = rank.overlap(), waited = rank.exposed_communication();
    if (hidden >= 0 && hidden <= 1 && waited > 0 && waited <= 1) ++shares_seen;
  });
  CHECK(code == 0);
  CHECK(shares_seen == 2);
  CHECK(profile_of_process().get().steps() == 12);  // of both ranks, and none of before the run
  CHECK(exposed_communication() > 0);
  REQUIRE_OVERLAP(0);
}
