// Strategies whose ranks train by themselves between outer steps.
#include "strategies/replicated/local_steps.hpp"

#include "actors/strategy/saved_state.hpp"
#include "launch/program/strategy_conformance.hpp"
#include "tests/catch.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using testing::largest_difference;
using testing::SmallTraining;

namespace {

SmallTraining::Result local_run(const std::string& strategy, int ranks, std::int64_t steps,
                                const std::function<void(SmallTraining&)>& set = {}) {
  SmallTraining training(strategy, ranks);
  training.steps = steps;
  training.jobs.options.strategy.sync_every = 4;
  training.optimizer.momentum = training.optimizer.weight_decay = 0;
  if (set) set(training);
  auto result = training.run();
  CHECK(testing::joined(result.errors) == "");
  return result;
}

std::string local_refusal(const std::function<void(StrategyOptions&)>& set) {
  SmallTraining training("diloco", 2);
  set(training.jobs.options.strategy);
  training.steps = 1;
  return training.run().errors.front();
}

}  // namespace

TEST_CASE("[X05] local_sgd with an outer step after each step trains as ddp does, on 2 and 4 ranks") {
  const int ranks = GENERATE(2, 4);
  const auto expected = local_run("ddp", ranks, 50);
  const auto found =
      local_run("local_sgd", ranks, 50, [](SmallTraining& t) { t.jobs.options.strategy.sync_every = 1; });
  CHECK(largest_difference(found.losses, expected.losses) < 1e-4);
  CHECK(largest_difference(testing::model_part(found.state), testing::model_part(expected.state)) < 1e-4);
}

// By hand: each rank's steps, the mean of the changes, Nesterov's momentum as torch.optim.SGD has it.
TEST_CASE("[X05] diloco computes what its paper says, on 2, 4 and 8 ranks") {
  const int ranks = GENERATE(2, 4, 8);
  constexpr double kLr = 0.1, kOuterLr = 0.7, kMomentum = 0.9;
  constexpr std::int64_t kEvery = 4, kSteps = 12;
  const auto make = [] {
    auto model = testing::make_seeded<testing::SmallMlpImpl>(1);
    model->to(torch::kDouble);
    return model;
  };
  const auto found = local_run("diloco", ranks, kSteps, [&](SmallTraining& t) {
    t.model = make;
    t.forward = [](torch::nn::Module& model, const at::Tensor& input) {
      return dynamic_cast<testing::SmallMlpImpl&>(model).forward(input.to(torch::kDouble));
    };
  });

  const auto model = make();
  std::vector<at::Tensor> outer, momentum;
  for (const auto& p : model->parameters()) {
    outer.push_back(p.detach().clone());
    momentum.push_back(torch::zeros_like(p));
  }
  torch::AutoGradMode with_gradients(true);
  std::vector<std::vector<at::Tensor>> replicas(static_cast<std::size_t>(ranks), outer);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    for (int r = 0; r < ranks; ++r) {
      auto& mine = replicas[static_cast<std::size_t>(r)];
      torch::NoGradGuard no_grad;
      auto parameters = model->parameters();
      for (std::size_t p = 0; p < parameters.size(); ++p) parameters[p].copy_(mine[p]);
      model->zero_grad();
      const auto [input, target] = testing::small_batch(step);
      const auto part = input.size(0) / ranks;
      {
        torch::AutoGradMode on(true);
        const auto output = model->forward(input.narrow(0, r * part, part).to(torch::kDouble));
        torch::nn::functional::cross_entropy(output.to(torch::kFloat), target.narrow(0, r * part, part)).backward();
      }
      for (std::size_t p = 0; p < parameters.size(); ++p) mine[p] = mine[p] - kLr * parameters[p].grad();
    }
    if ((step + 1) % kEvery != 0) continue;
    for (std::size_t p = 0; p < outer.size(); ++p) {
      auto gradient = torch::zeros_like(outer[p]);
      for (const auto& mine : replicas) gradient += (outer[p] - mine[p]) / ranks;
      momentum[p] = kMomentum * momentum[p] + gradient;
      outer[p] = outer[p] - kOuterLr * (gradient + kMomentum * momentum[p]);
      for (auto& mine : replicas) mine[p] = outer[p].clone();
    }
  }
  const auto names = model->named_parameters();
  for (std::size_t p = 0; p < outer.size(); ++p) {
    INFO(names[p].key());
    CHECK((found.at("model." + names[p].key()) - outer[p]).abs().max().item<double>() < 1e-5);
    CHECK((found.at("strategy.outer_momentum." + names[p].key()) - momentum[p]).abs().max().item<double>() < 1e-5);
  }
}

TEST_CASE(
    "[X05] between outer steps a checkpoint has the mean of the replicas, rank 0's optimizer, and the outer "
    "parameters") {
  std::mutex mutex;
  std::map<std::string, at::Tensor> sum, first;
  const auto found = local_run("local_sgd", 4, 6, [&](SmallTraining& t) {
    t.optimizer.momentum = 0.9;
    t.at_end = [&](RankSystem& system, Optimizer& optimizer) {
      std::lock_guard lock(mutex);
      for (const auto& [name, tensor] : system.compute().strategy().replicated_tensors()) {
        auto& value = sum[name];
        value = value.defined() ? value + tensor / 4 : tensor / 4;
      }
      if (system.compute().rank() != 0) return;
      for (const auto& [name, tensor] : optimizer.state()) first[name] = tensor.clone();
    };
  });
  REQUIRE(!first.empty());
  for (const auto& [name, mean] : sum) CHECK((found.at("model." + name) - mean).abs().max().item<double>() < 1e-6);
  for (const auto& [name, value] : first) CHECK((found.at("optimizer." + name) == value).all().item<bool>());
  // The outer parameters are those of step 4.
  const auto at_outer_step = local_run("local_sgd", 4, 4, [](SmallTraining& t) { t.optimizer.momentum = 0.9; });
  for (const auto& [name, mean] : sum)
    CHECK((found.at("strategy.outer." + name) == at_outer_step.at("model." + name)).all().item<bool>());
}

TEST_CASE("[X05] a diloco run that is saved at an outer step goes on with the bits of the undisturbed one") {
  const auto whole = local_run("diloco", 2, 16);
  const auto half = local_run("diloco", 2, 8);
  const auto rest = local_run("diloco", 2, 8, [&](SmallTraining& t) {
    t.saved = half.state;
    t.first_step = 8;
    t.before_step = [](RankSystem& system, torch::nn::Module&,
                       std::int64_t step) {  // as the checkpoint's metadata would
      if (step == 8)
        system.compute().strategy().saved_state().load_state(
            {{"local_steps.outer_steps", "2"}, {"local_steps.last", "0"}, {"local_steps.next", "12"}});
    };
  });
  CHECK(largest_difference(rest.state, whole.state) == 0);
}

TEST_CASE("[X05] fragments of diloco meet in turn, and overlapped with steps, and train as well") {
  const auto first = local_run("ddp", 4, 200);
  const auto overlap = GENERATE(0, 2);
  const auto found = local_run("diloco", 4, 200, [&](SmallTraining& t) {
    auto& options = t.jobs.options.strategy;
    options.sync_every = 12;
    options.diloco_fragments = 3;
    options.diloco_overlap = overlap;
    t.at_end = [](RankSystem& system, Optimizer&) {
      const auto& strategy = dynamic_cast<LocalSteps&>(system.compute().strategy());
      CHECK(strategy.outer_steps() >= 3 * (200 / 12) - 1);
      CHECK(strategy.outer_steps() <= 3 * (200 / 12) + 2);
    };
  });
  const auto mean_of_last = [](const std::vector<double>& losses) {
    return std::accumulate(losses.end() - 20, losses.end(), 0.0) / 20;
  };
  CHECK(mean_of_last(found.losses) < mean_of_last(first.losses) * 1.1);
}

TEST_CASE("[X05] a model is cut into fragments of neighbours of about the same number of elements") {
  CHECK((cut_fragments({10, 10, 10, 10}, 2) == std::vector<std::int32_t>{0, 0, 1, 1}));
  CHECK((cut_fragments({100, 1, 1, 100}, 2) == std::vector<std::int32_t>{0, 0, 1, 1}));
  CHECK((cut_fragments({5}, 4) == std::vector<std::int32_t>{2}));
  CHECK(cut_fragments({}, 3).empty());
}

TEST_CASE("[X05] the gradient of each rank is clipped by its own norm where replicas differ") {
  std::mutex mutex;
  std::vector<double> norms;
  (void)local_run("local_sgd", 2, 1, [&](SmallTraining& t) {
    t.jobs.options.training.clip_norm = 0.01;
    t.lr = 1;
    t.before_step = [](RankSystem& system, torch::nn::Module& model, std::int64_t) {
      if (system.compute().rank() != 1) return;  // its gradients are other ones
      torch::NoGradGuard no_grad;
      for (auto& p : model.parameters()) p.mul_(3);
    };
    t.at_end = [&](RankSystem& system, Optimizer& optimizer) {
      double sum = 0;
      for (const auto& group : optimizer.groups()) {
        for (const auto& [name, parameter] : group.parameters) sum += parameter.grad().square().sum().item<double>();
      }
      std::lock_guard lock(mutex);
      norms.push_back(std::sqrt(sum));
    };
  });
  REQUIRE(norms.size() == 2);
  for (const auto norm : norms) CHECK(norm == Approx(0.01).epsilon(1e-3));
}

// A new generation after a loss in the middle of an outer step, which only some ranks have done.
TEST_CASE("[X05] a rank that missed an outer step takes it over in the next generation") {
  (void)local_run("diloco", 3, 8, [](SmallTraining& t) {
    t.before_step = [](RankSystem& system, torch::nn::Module& model, std::int64_t step) {
      if (step != 6) return;
      torch::NoGradGuard no_grad;
      auto& compute = system.compute();
      auto& strategy = compute.strategy();
      auto state = strategy.saved_state().state();
      CHECK(state["local_steps.outer_steps"] == "1");
      if (compute.rank() == 1) {
        state["local_steps.outer_steps"] = "0";
        state["local_steps.next"] = "4";
        strategy.saved_state().load_state(state);
        for (const auto& [name, tensor] : strategy.strategy_tensors()) tensor.fill_(7);
      }
      const auto before = model.parameters().front().detach().clone();
      strategy.rejoin(testing::next_generation(compute));

      CHECK(strategy.saved_state().state()["local_steps.outer_steps"] == "1");
      CHECK(strategy.saved_state().state()["local_steps.next"] == "8");
      const auto hash = hash_tensors(strategy.strategy_tensors());
      for (const auto& other :
           compute.program_communicator().all_gather_bytes({reinterpret_cast<const char*>(&hash), sizeof hash}))
        CHECK(std::memcmp(other.data(), &hash, sizeof hash) == 0);
      const auto outer = strategy.strategy_tensors().front().second;
      CHECK(outer.eq(7).sum().item<std::int64_t>() == 0);
      const auto now = model.parameters().front().detach();
      CHECK((compute.rank() == 1 ? now.equal(outer) : now.equal(before)));  // the others keep their inner steps
    };
  });
}

TEST_CASE("[X05] settings of diloco that make no sense are refused by their names") {
  CHECK(local_refusal([](auto& o) { o.sync_every = 2, o.diloco_fragments = 3; }).find("diloco_fragments") !=
        std::string::npos);
  CHECK(local_refusal([](auto& o) { o.sync_every = 4, o.diloco_overlap = 4; }).find("diloco_overlap") !=
        std::string::npos);
  CHECK(local_refusal([](auto& o) { o.comm_hook = "powersgd"; }).find("comm_hook") != std::string::npos);
}
