// Jobs that adapt while they run.
#include <map>
#include <mutex>
#include <set>

#include "launch/program/job.hpp"
#include "tensor_io/checkpoint/checkpoint_reader.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

Job adapting_job() {
  Job job;
  job.model = [](const Config&) {
    return torch::nn::Sequential(torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 16),
                                 torch::nn::Tanh(), torch::nn::Linear(16, 2))
        .ptr();
  };
  job.data = [](const Config&) {
    const auto input = torch::randn({192, 6}, at::detail::createCPUGenerator(3));
    return Datasets{std::make_shared<TensorDataset>(input, (input.sum(1) > 0).to(torch::kLong)), nullptr};
  };
  job.loss = [](torch::nn::Module& model, const Batch& batch, const Config&) {
    return Loss(torch::nn::functional::cross_entropy(model.as<torch::nn::SequentialImpl>()->forward(batch.input),
                                                     batch.target));
  };
  return job;
}

// What a run was, step by step.
struct AdaptingRun {
  std::map<std::int64_t, double> losses;                        // of the whole batch, by step
  std::map<std::int64_t, std::multiset<std::int64_t>> samples;  // of all ranks, by step
  std::map<std::int64_t, std::map<int, std::int64_t>> by_rank;  // how many, by step and rank
  std::vector<std::string> notices;                             // rank 0's
  NamedTensors state;
  std::string errors;
};

AdaptingRun adapt(
    const std::string& folder, int world_size, Config config,
    const std::function<void(int rank, std::int64_t samples)>& hold_up = [](int, std::int64_t) {}) {
  config.checkpoint_dir = folder;
  config.run_dir = "";
  config.batch_size = 16;
  config.lr = 0.1;
  config.validate_every = 0;
  AdaptingRun run;
  std::mutex mutex;
  const auto errors = testing::run_program(world_size, config, [&](Rank& rank) {
    const auto job = adapting_job();
    const auto model = rank.distribute([&] { return job.model(config); });
    const auto optimizer = rank.make_optimizer(*model);
    rank.keep_checkpoints(*optimizer);
    for (const auto& batch : rank.loader(job.data(config).train)) {
      const auto step = rank.steps_done();
      {
        std::lock_guard lock(mutex);
        const auto index = batch.index.contiguous();
        run.samples[step].insert(index.const_data_ptr<std::int64_t>(),
                                 index.const_data_ptr<std::int64_t>() + index.numel());
        run.by_rank[step][rank.rank()] += batch.numel();
      }
      hold_up(rank.rank(), batch.numel());
      rank.backward(job.loss(*model, batch, config).value);
      if (!batch.last_of_step) continue;
      const auto report = rank.step(*optimizer);
      std::lock_guard lock(mutex);
      run.losses[report.step] = report.loss;
      if (rank.is_main()) run.notices.insert(run.notices.end(), report.notices.begin(), report.notices.end());
    }
  });
  for (const auto& error : errors) run.errors += error;
  if (run.errors.empty()) run.state = load_checkpoint(folder, "latest").state.tensors;
  return run;
}

double adapting_difference(const AdaptingRun& a, const AdaptingRun& b) {
  if (a.losses.size() != b.losses.size() || a.state.size() != b.state.size()) return 1e9;
  double worst = 0;
  for (const auto& [step, loss] : a.losses) worst = std::max(worst, std::abs(loss - b.losses.at(step)));
  for (std::size_t i = 0; i < a.state.size(); ++i) {
    if (a.state[i].first != b.state[i].first) return 1e9;
    const auto difference =
        (a.state[i].second.to(at::kDouble) - b.state[i].second.to(at::kDouble)).abs().max().item<double>();
    worst = std::max(worst, difference);
  }
  return worst;
}

}  // namespace

TEST_CASE(
    "[X06] ranks with unequal shares of the batch have the losses and weights of ranks with equal ones, on the same "
    "samples") {
  const std::string strategy = GENERATE("ddp", "zero2", "fsdp");
  INFO(strategy);
  testing::ScratchDirectory equal, weighted;
  Config config;
  config.strategy = strategy;
  config.epochs = 2;
  config.grad_accum_steps = GENERATE(1, 2);
  const auto reference = adapt(equal.path(), 2, config);
  config.balance = "3,1";
  const auto found = adapt(weighted.path(), 2, config);
  CHECK(reference.errors + found.errors == "");
  CHECK(found.losses.size() == 24);
  CHECK((found.samples == reference.samples));
  CHECK((found.by_rank.at(5) == std::map<int, std::int64_t>{{0, 12}, {1, 4}}));
  CHECK(adapting_difference(found, reference) < 1e-5);
}

TEST_CASE(
    "[X06] a rank that needs longer for a sample gets fewer of them, and the loss curve stays that of equal shares") {
  testing::ScratchDirectory equal, balanced;
  Config config;
  config.epochs = 4;
  const auto reference = adapt(equal.path(), 2, config);
  config.balance = "speed";
  // Rank 1 takes so long for a sample that no other work of this machine hides it.
  const auto found = adapt(balanced.path(), 2, config, [](int rank, std::int64_t samples) {
    std::this_thread::sleep_for(std::chrono::milliseconds(rank == 1 ? 5 * samples : samples));
  });
  CHECK(reference.errors + found.errors == "");
  CHECK(found.losses.size() == 48);
  CHECK((found.samples == reference.samples));
  CHECK((found.by_rank.at(0) == std::map<int, std::int64_t>{{0, 8}, {1, 8}}));
  CHECK(found.by_rank.at(47).at(1) < 8);
  CHECK(found.by_rank.at(47).at(0) + found.by_rank.at(47).at(1) == 16);
  REQUIRE(!found.notices.empty());
  CHECK_THAT(found.notices.front(), Catch::Contains("shares of the batch are now"));
  CHECK(adapting_difference(found, reference) < 1e-5);
}

TEST_CASE("[X06] a run with shares by weight resumes with the bits and the samples of the undisturbed one") {
  testing::ScratchDirectory whole, part;
  Config config;
  config.epochs = 2;
  config.balance = "1,3";
  config.save_every = 7;
  config.keep_last = 10;
  auto reference = adapt(whole.path(), 2, config);
  std::filesystem::copy(whole / "step-00000007", part / "step-00000007", std::filesystem::copy_options::recursive);
  config.resume = "latest";
  const auto found = adapt(part.path(), 2, config);
  CHECK(reference.errors + found.errors == "");
  for (std::int64_t step = 0; step < 7; ++step) reference.losses.erase(step), reference.samples.erase(step);
  CHECK((found.samples == reference.samples));
  CHECK(adapting_difference(found, reference) == 0);
}

TEST_CASE("[X06] a run resumes with the strategy that it was in, and with its outer parameters") {
  testing::ScratchDirectory whole, part;
  Config config;
  config.epochs = 2;
  config.sync_every = 3;
  config.momentum = 0;  // of the ranks' optimizers a checkpoint has one
  config.weight_decay = 0;
  config.switch_at = "4:diloco,16:ddp+bf16";
  config.save_every = 7;  // after one outer step
  config.keep_last = 10;
  const auto reference = adapt(whole.path(), 2, config);
  CHECK(reference.errors == "");
  const bool in_diloco = GENERATE(true, false);
  const std::string saved = in_diloco ? "step-00000007" : "step-00000021";
  std::filesystem::copy(whole / saved, part / saved, std::filesystem::copy_options::recursive);
  config.resume = "latest";
  const auto found = adapt(part.path(), 2, config);
  CHECK(found.errors == "");
  const std::size_t done = in_diloco ? 7 : 21;
  CHECK(found.losses.size() == 24 - done);
  REQUIRE(found.notices.size() == (in_diloco ? 1 : 0));  // not told again, and not done again
  if (in_diloco)
    CHECK_THAT(found.notices[0], Catch::Contains("step 16: the strategy is now ddp+bf16, before it was diloco"));
  auto expected = reference;
  for (std::int64_t step = 0; step < static_cast<std::int64_t>(done); ++step) expected.losses.erase(step);
  CHECK(adapting_difference(found, expected) == 0);
}

TEST_CASE("[X06] a balance that does not fit the job is refused in a line") {
  testing::ScratchDirectory folder;
  Config config;
  config.balance = "3,1,1";
  CHECK_THAT(adapt(folder.path(), 2, config).errors, Catch::Contains("balance") && Catch::Contains("3 weights"));
  config.balance = "speed";
  config.strategy = "tensor_parallel";
  config.mesh = "dp=2";
  CHECK_THAT(adapt(folder.path(), 2, config).errors, Catch::Contains("balance: with strategy tensor_parallel"));
}
