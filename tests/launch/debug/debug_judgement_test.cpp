#include "launch/debug/debug_judgement.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "launch/debug/inspection_request.hpp"
#include "launch/process/scratch_folder.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace {

using Verdict = DebugVerdict;

const std::vector<double> kPart0{1, 2, 3}, kPart1{2, 0, 1}, kMean{1.5, 1, 2};

InspectionRecord record_of(int rank, int ranks) {
  InspectionRecord record;
  record.rank = record.data_rank = rank;
  record.world_size = ranks;
  record.strategy = "ddp";
  record.device = "cpu";
  record.settings = {{"comm_hook", "none"},       {"use_amp", "false"}, {"param_dtype", "float32"},
                     {"reduce_dtype", "float32"}, {"shuffle", "true"},  {"broadcast_buffers", "true"}};
  record.model = {
      {.name = "w", .shape = "[3]", .dtype = "Float", .device = "cpu", .requires_grad = true, .digest = "1"}};
  record.loss = {{.name = "loss", .shape = "[]", .dtype = "Float", .device = "cpu", .requires_grad = true}};
  record.losses = {4, 3, 2, 1};
  record.pace.step_ms = {9, 8, 8, 8};
  record.pace.own_ms.assign(4, std::vector<double>(static_cast<std::size_t>(ranks), 5));
  record.samples = {{"a" + std::to_string(rank)}};
  record.ended = true;
  return record;
}

DebugRun run_of(int ranks) {
  DebugRun run;
  run.ranks = ranks;
  for (int rank = 0; rank < ranks; ++rank) run.records.push_back(record_of(rank, ranks));
  return run;
}

InspectedGradient gradient(const std::string& name, std::vector<double> values) { return {name, std::move(values)}; }

// Nothing is wrong with it.
DebugRuns sound() {
  DebugRuns runs;
  runs.alone = run_of(1);
  runs.together = run_of(2);
  runs.gradient_alone = run_of(1);
  runs.gradient_together = run_of(2);
  runs.gradient_alone.records[0].samples = {{"a0", "a1"}};
  runs.gradient_alone.records[0].gradients.whole = {gradient("w", kMean)};
  runs.gradient_together.records[0].gradients.whole = {gradient("w", kMean)};
  runs.gradient_together.records[0].gradients.local = {gradient("w", kPart0)};
  runs.gradient_together.records[1].gradients.local = {gradient("w", kPart1)};
  runs.hosts = {{{}, "cores", "ok", "2", {}}, {{}, "collective", "ok", "2 ranks", {}}};
  runs.cores = 2;
  return runs;
}

DebugFinding only_wrong(const DebugRuns& runs) {
  std::vector<DebugFinding> wrong;
  const auto findings = judge(runs);
  for (const auto& finding : findings) {
    if (finding.verdict == Verdict::warn || finding.verdict == Verdict::fail) wrong.push_back(finding);
  }
  INFO(to_table(findings));
  REQUIRE(wrong.size() == 1);
  CHECK_FALSE(wrong[0].page.empty());
  return wrong[0];
}

void check_wrong(const DebugRuns& runs, DebugStep step, Verdict verdict, const std::string& says) {
  const auto wrong = only_wrong(runs);
  INFO(wrong.found);
  CHECK(wrong.step == step);
  CHECK(wrong.verdict == verdict);
  CHECK(wrong.found.find(says) != std::string::npos);
}

}  // namespace

TEST_CASE("[U02] six steps of a sound program are ok") {
  const auto findings = judge(sound());
  std::set<DebugStep> steps;
  for (const auto& finding : findings) {
    CHECK(finding.verdict == Verdict::ok);
    steps.insert(finding.step);
  }
  CHECK(steps.size() == 6);
  CHECK(exit_code(findings) == 0);
}

TEST_CASE("[U02] what an error says decides the step that it belongs to, whichever run it ended") {
  const auto [error, ranks, step] = GENERATE(table<std::string, int, DebugStep>({
      {"rank 0, compute, step 0: the model has no blocks; declare them", 1, DebugStep::one_rank},
      {"device: 'cuda:0' was asked for, but there is no GPU", 1, DebugStep::environment},
      {"rank 1: collective 2: every rank must launch the same collectives in the same order", 2, DebugStep::group},
      {"rank 1 has left the training loop while the others go on", 2, DebugStep::group},
      {"rank 0: vote: rank 1 drew from a data set of 48 samples", 2, DebugStep::tensors},
      {"rank 0: Expected all tensors to be on the same device", 1, DebugStep::tensors},
      {"rank 1, compute, step 1: vote: the loss is not finite; lower lr", 2, DebugStep::gradients},
      {"rank 0, compute, step 1: vote: the loss is not finite; lower lr", 1, DebugStep::one_rank},
  }));
  auto runs = sound();
  auto& run = ranks == 1 ? runs.alone : runs.together;
  run.exit_code = 1;
  run.error = error;
  run.records.clear();
  const auto wrong = only_wrong(runs);
  CHECK(wrong.step == step);
  CHECK(wrong.verdict == Verdict::fail);
  CHECK(exit_code(judge(runs)) == 1);
  if (error.starts_with("device")) CHECK(wrong.subject == "device");
  if (error.find("vote") != std::string::npos) CHECK(wrong.subject == "vote");
}

TEST_CASE("[U02] a run that was stopped when its inspection was over has not failed") {
  auto runs = sound();
  runs.alone.exit_code = 143;
  CHECK_FALSE(runs.alone.failed());
  runs.alone.records[0].ended = false;
  CHECK(runs.alone.failed());
  runs.alone.records[0].ended = true;
  runs.alone.timed_out = true;
  CHECK(runs.alone.failed());
}

TEST_CASE("[U02] a loss that rises, stays or is not finite is said with its rate") {
  auto runs = sound();
  auto& losses = runs.alone.records[0].losses;
  losses = {1, 1, 2, 3};
  check_wrong(runs, DebugStep::one_rank, Verdict::fail, "rises, from 1 to 3");
  losses = {1, 3, 1, 1, 1, 1, 3, 2};  // noise
  check_wrong(runs, DebugStep::one_rank, Verdict::warn, "does not fall");
  losses = {1, 1, 1, 1.05};
  check_wrong(runs, DebugStep::one_rank, Verdict::warn, "does not fall");
  losses = {1, kNotFinite, 1, 1};
  check_wrong(runs, DebugStep::one_rank, Verdict::fail, "not finite");
}

TEST_CASE("[U02] the ranks' parts show whether it is a mean of means or a wrong reduction") {
  auto runs = sound();
  auto& alone = runs.gradient_alone.records[0].gradients.whole;
  auto& together = runs.gradient_together.records[0].gradients.whole;
  alone = {gradient("w", {1.25, 1.5, 2.5})};  // 3/4 of the first part, 1/4 of the second
  check_wrong(runs, DebugStep::gradients, Verdict::fail, "they count 0.750, 0.250");
  alone = {gradient("w", kMean)};
  together = {gradient("w", {3, 2, 4})};
  check_wrong(runs, DebugStep::gradients, Verdict::fail, "reduction of strategy ddp makes 2 times their mean");
  together = {gradient("w", {1.5, 1, 9})};
  check_wrong(runs, DebugStep::gradients, Verdict::fail, "does not add them up");
}

TEST_CASE("[U02] the cause of another gradient is what the records show") {
  auto runs = sound();
  auto& together = runs.gradient_together.records;
  together[0].gradients.whole = {gradient("w", {1, 1, 1})};
  together[0].gradients.local = {gradient("w", {1, 0, 0})};
  together[1].gradients.local = {gradient("w", {0, 1, 0})};
  check_wrong(runs, DebugStep::gradients, Verdict::fail, "debug finds no cause");
  together[0].batch_norms = {"norm"};
  check_wrong(runs, DebugStep::gradients, Verdict::warn, "BatchNorm 'norm'");
  together[1].samples = {{"b"}};
  check_wrong(runs, DebugStep::gradients, Verdict::fail, "do not have the samples");
  runs.other_draw = run_of(1);
  runs.other_draw->records[0].gradients.whole = {gradient("w", {0, 0, 0})};
  check_wrong(runs, DebugStep::gradients, Verdict::warn, "draws different random numbers");
}

TEST_CASE("[U02] the first parameter that differs is named, and a gradient of rounding alone is none") {
  auto runs = sound();
  auto& alone = runs.gradient_alone.records[0].gradients.whole;
  auto& together = runs.gradient_together.records[0].gradients.whole;
  alone = {gradient("bias", {1e-9, 2e-9}), gradient("w", kMean), gradient("x", kMean)};
  together = {gradient("bias", {-3e-9, 1e-9}), gradient("w", kMean), gradient("x", kMean)};
  CHECK_FALSE(gradient_difference(runs.gradient_alone, runs.gradient_together));
  together = {gradient("bias", {0, 0}), gradient("w", {1, 1, 2}), gradient("x", {9, 9, 9})};
  const auto difference = gradient_difference(runs.gradient_alone, runs.gradient_together);
  REQUIRE(difference);
  CHECK(difference->name == "w");
  CHECK(difference->others == 1);
}

TEST_CASE("[U02] ranks with the same samples are named, unless they are to work on them together") {
  auto runs = sound();
  auto& records = runs.gradient_together.records;
  records[1].samples = records[0].samples;
  check_wrong(runs, DebugStep::gradients, Verdict::fail, "ranks 0 and 1 train on the same samples");
  records[0].samples.clear();
  records[1].samples.clear();
  records[1].gradients.local = records[0].gradients.local;
  check_wrong(runs, DebugStep::gradients, Verdict::fail, "ranks 0 and 1 train on the same samples");
  records[1].data_rank = 0;
  runs.gradient_alone.records[0].samples.clear();
  CHECK(exit_code(judge(runs)) == 0);
}

TEST_CASE("[U02] batches that come again in one order are seen once the order was there twice") {
  auto runs = sound();
  auto& samples = runs.alone.records[0].samples;
  samples = {{"a"}, {"b"}, {"c"}, {"a"}, {"b"}};
  CHECK(exit_code(judge(runs)) == 0);
  CHECK(judge(runs)[0].verdict == Verdict::ok);
  samples.push_back({"c"});
  check_wrong(runs, DebugStep::gradients, Verdict::warn, "after 3 steps");
  samples[5] = {"d"};
  CHECK_NOTHROW(judge(runs));
  for (const auto& finding : judge(runs)) CHECK(finding.verdict == Verdict::ok);
}

TEST_CASE("[U02] tensors that are elsewhere, not finite or not the same on all ranks are named") {
  auto runs = sound();
  auto& first = runs.together.records[0];
  auto& other = runs.together.records[1];
  other.model[0].digest = "2";
  check_wrong(runs, DebugStep::tensors, Verdict::warn, "w has other initial values on rank 1");
  other.model[0].requires_grad = false;
  check_wrong(runs, DebugStep::tensors, Verdict::fail, "frozen on rank 1");
  other = record_of(1, 2);
  first.model[0].device = "cuda:1";
  check_wrong(runs, DebugStep::tensors, Verdict::fail, "parameter w is on cuda:1");
  first.model[0].device = "cpu";
  first.model[0].finite = false;
  check_wrong(runs, DebugStep::tensors, Verdict::fail, "begins with NaN");
  first.model[0].finite = true;
  first.model[0].dense = false;
  check_wrong(runs, DebugStep::tensors, Verdict::warn, "gaps or overlaps");
  first.model[0].dense = true;
  first.buffers_at_end = {{.name = "seen", .digest = "1"}};
  other.buffers_at_end = {{.name = "seen", .digest = "2"}};
  check_wrong(runs, DebugStep::tensors, Verdict::warn, "buffer seen differs between ranks 0 and 1");
  first.comparable = other.comparable = false;
  CHECK(exit_code(judge(runs)) == 0);
}

TEST_CASE("[U02] a record says on disk what it said in memory, and infinity as a number that it is known by") {
  const ScratchFolder folder("troupe-record");
  auto record = record_of(1, 2);
  record.losses = {std::numeric_limits<double>::quiet_NaN(), 2};
  record.gradients.whole = {gradient("w", {1, std::numeric_limits<double>::infinity()})};
  const auto path = folder / "rank1.json";
  std::ofstream(path) << record.to_json();
  const auto again = InspectionRecord::read(path);
  CHECK(again.rank == 1);
  CHECK((again.model == record.model));
  CHECK(again.samples == record.samples);
  CHECK(again.losses == std::vector<double>{kNotFinite, 2});
  CHECK(again.gradients.whole[0].values == std::vector<double>{1, kNotFinite});
  std::ofstream(path) << "{";
  CHECK_THROWS_AS(InspectionRecord::read(path), Error);
}

TEST_CASE("[U02] an inspected run writes nowhere, resumes nothing, and says what was asked for") {
  Config config;
  config.resume = "latest";
  config.checkpoint_dir = "c";
  config.ranks = 4;
  config.early_update = true;
  InspectionRequest request;
  request.gradients = true;
  const auto aside = make_harmless(config, request);
  CHECK(aside == std::map<std::string, std::string>{{"resume", "latest"}});
  CHECK(config.run_dir.empty());
  CHECK(config.checkpoint_dir.empty());
  CHECK(config.resume.empty());
  CHECK(config.save_every == -1);
  CHECK(config.ranks == 1);
  CHECK_FALSE(config.early_update);
  CHECK_FALSE(config.tensorboard);
}
