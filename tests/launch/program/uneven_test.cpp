#include <csignal>
#include <mutex>

#include "launch/loop/rank_system.hpp"
#include "strategies/batch_norm/sync_batch_norm.hpp"
#include "tensor_io/base/random_seed.hpp"
#include "tests/catch.hpp"
#include "tests/support/run_program.hpp"
#include "tests/support/scratch_directory.hpp"

using namespace troupe;

namespace {

using Pair = std::pair<at::Tensor, at::Tensor>;  // input, target

struct NormNetImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 12));
  nn::BatchNorm norm = register_module("norm", nn::BatchNorm(12));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(12, 3));
  at::Tensor loss(const Pair& batch) {
    return torch::nn::functional::cross_entropy(last(torch::tanh(norm(first(batch.first)))), batch.second);
  }
};
TORCH_MODULE(NormNet);

NormNet make_net() {
  const auto building = seed_model(11);
  return NormNet();
}

Pair samples(std::int64_t n, std::uint64_t seed) {
  const auto input = at::randn({n, 6}, at::detail::createCPUGenerator(seed)) + 0.3;
  return {input, (input.sum(1) > 1).to(at::kLong) + (input.select(1, 0) > 0.5).to(at::kLong)};
}

// Ranks 0, 1, 2 have 4, 2 and 3 batches; batch s of rank r.
const std::vector<std::vector<std::int64_t>> kSizes{{4, 4, 4, 2}, {4, 3}, {1, 4, 4}};
std::vector<Pair> batches_of(int rank) {
  std::vector<Pair> list;
  for (const auto n : kSizes[static_cast<std::size_t>(rank)])
    list.push_back(samples(n, 100 + 10 * static_cast<std::uint64_t>(rank) + list.size()));
  return list;
}

struct Outcome {
  std::vector<double> losses, counts;
  NamedTensors state;
};

Config plain_config() {
  Config config;
  config.lr = 0.2;
  config.weight_decay = 0;
  return config;
}

// Trains on `batches`; what rank 0 saw.
Outcome train(int world_size, const std::function<std::vector<Pair>(int)>& batches) {
  Outcome outcome;
  std::mutex mutex;
  const auto errors = testing::run_program(world_size, plain_config(), [&](Rank& rank) {
    auto net = make_net();
    convert_sync_batchnorm(*net, system_of(rank).compute().services().program_communicator);
    rank.distribute(net);
    auto optimizer = rank.make_optimizer(*net);
    int steps = 0;
    for (const auto& batch : rank.uneven(batches(rank.rank()))) {
      rank.backward(net->loss(batch));
      const auto report = rank.step(*optimizer);
      ++steps;
      if (!rank.is_main()) continue;
      outcome.losses.push_back(report.loss);
      outcome.counts.push_back(report.samples);
    }
    std::lock_guard lock(mutex);
    CHECK(steps == 4);
    if (!rank.is_main()) return;
    for (const auto& item : net->named_parameters())
      outcome.state.emplace_back(item.key(), item.value().detach().clone());
    for (const auto& item : net->named_buffers()) outcome.state.emplace_back(item.key(), item.value().clone());
  });
  for (const auto& error : errors) CHECK(error.empty());
  return outcome;
}

}  // namespace

TEST_CASE(
    "[D11] ranks with unequal amounts of data train as one rank that has all of it, and SyncBatchNorm leaves repeats "
    "out") {
  const auto uneven = train(3, batches_of);
  const auto alone = train(1, [](int) {
    std::vector<Pair> whole;
    for (std::size_t s = 0; s < 4; ++s) {
      std::vector<at::Tensor> inputs, targets;
      for (int r = 0; r < 3; ++r) {
        const auto mine = batches_of(r);
        if (s >= mine.size()) continue;
        inputs.push_back(mine[s].first);
        targets.push_back(mine[s].second);
      }
      whole.emplace_back(at::cat(inputs), at::cat(targets));
    }
    return whole;
  });
  CHECK((uneven.counts == std::vector<double>{9, 11, 8, 2}));
  CHECK((uneven.counts == alone.counts));
  REQUIRE(uneven.losses.size() == alone.losses.size());
  for (std::size_t s = 0; s < alone.losses.size(); ++s) CHECK(std::abs(uneven.losses[s] - alone.losses[s]) < 1e-5);
  REQUIRE(uneven.state.size() == alone.state.size());
  for (std::size_t i = 0; i < alone.state.size(); ++i) {
    INFO(alone.state[i].first << "\n" << uneven.state[i].second << "\n" << alone.state[i].second);
    CHECK(uneven.state[i].second.to(at::kDouble).allclose(alone.state[i].second.to(at::kDouble), 1e-4, 1e-5));
  }
}

TEST_CASE("[D11] a range that has a name is referred to, and after the loop the ranks train evenly again") {
  const auto errors = testing::run_program(2, plain_config(), [&](Rank& rank) {
    auto net = make_net();
    convert_sync_batchnorm(*net, system_of(rank).compute().services().program_communicator);
    rank.distribute(net);
    auto optimizer = rank.make_optimizer(*net);
    const std::vector<at::Tensor> mine(rank.is_main() ? 1 : 3, at::ones({2, 6}));
    for (const auto& input : rank.uneven(mine)) {
      rank.backward(net->loss({input, at::zeros({2}, at::kLong)}));
      (void)rank.step(*optimizer);
    }
    CHECK(mine.size() == (rank.is_main() ? 1U : 3U));
    CHECK(system_of(rank).compute().steps_done() == 3);
    // Rank 0 ran out; its statistics must count again.
    net->norm->reset_running_stats();
    (void)net->norm(at::full({2, 12}, rank.is_main() ? 4.0 : 0.0));
    CHECK(net->norm->running_mean.allclose(at::full({12}, 0.2)));  // momentum 0.1 of the mean 2
  });
  for (const auto& error : errors) CHECK(error.empty());
}

TEST_CASE("[D11] a rank without any batch, micro-batches and a missing model are refused with the remedy") {
  const auto run = [](std::int64_t micro_batches, bool distribute, bool empty) {
    auto config = plain_config();
    config.grad_accum_steps = micro_batches;
    return testing::run_program(2, config, [&](Rank& rank) {
      auto net = make_net();
      if (distribute) rank.distribute(net);
      auto optimizer = rank.make_optimizer(*net);
      for (const auto& batch : rank.uneven(empty && rank.rank() == 1 ? std::vector<Pair>() : batches_of(0))) {
        rank.backward(net->loss(batch));
        (void)rank.step(*optimizer);
      }
    });
  };
  CHECK_THAT(run(1, false, false)[0], Catch::Contains("rank.distribute(model)"));
  CHECK_THAT(run(2, true, false)[0], Catch::Contains("grad_accum_steps is 2"));
  const auto errors = run(1, true, true);
  for (const auto& error : errors)
    CHECK_THAT(error, Catch::Contains("rank 1") && Catch::Contains("this rank has no batch"));
}

namespace {

class FewSamples final : public Dataset {
 public:
  std::int64_t size() const override { return 8; }
  Example get(std::int64_t index, const SampleContext&) const override {
    const auto [input, target] = samples(1, 500 + static_cast<std::uint64_t>(index));
    return {input[0], target[0]};
  }
};

}  // namespace

TEST_CASE(
    "[D11] [U04] a run that a signal stops in the first of its loops goes on there, with a validation and without") {
  const bool validates = GENERATE(true, false);
  const testing::ScratchDirectory folder;
  const auto batches = [&](bool stops) {  // of rank 0: loop and length
    std::vector<std::pair<int, std::int64_t>> seen;
    auto config = plain_config();
    config.checkpoint_dir = folder.path();
    config.run_dir = "";
    config.schedule = "constant";
    if (!stops) config.resume = "latest";
    const auto errors = testing::run_program(2, config, [&](Rank& rank) {
      auto net = make_net();
      rank.distribute(net);
      auto optimizer = rank.make_optimizer(*net);
      rank.keep_checkpoints(*optimizer);
      if (validates)
        rank.validate_on(std::make_shared<FewSamples>(), [&](const Batch& b) {
          return net->loss({b.input, b.target});
        });
      const auto mine = batches_of(0);
      for (int loop = 0; loop < 2; ++loop) {
        for (const auto& batch : rank.uneven(mine)) {
          if (rank.is_main()) seen.emplace_back(loop, batch.first.size(0));
          if (stops && rank.steps_done() == 1) system_of(rank).compute().services().status->stop_signal = SIGTERM;
          rank.backward(net->loss(batch));
          (void)rank.step(*optimizer);
        }
      }
    });
    for (const auto& error : errors) CHECK(error.empty());
    return seen;
  };
  CHECK((batches(true) == std::vector<std::pair<int, std::int64_t>>{{0, 4}, {0, 4}}));
  CHECK((batches(false) == std::vector<std::pair<int, std::int64_t>>{{0, 4}, {0, 2}, {1, 4}, {1, 4}, {1, 4}, {1, 2}}));
}
