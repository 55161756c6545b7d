// Jobs whose strategy changes while they run.
#include "strategies/switching/switching_strategy.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "actors/recovery/heal.hpp"
#include "actors/strategy/device_memory.hpp"
#include "actors/strategy/saved_state.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tests/catch.hpp"
#include "tests/support/lost_capabilities.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using testing::largest_difference;
using testing::SmallTraining;

namespace {

// Its gradients come in another order than that of its parameters, backwards.
struct LastFirstImpl : torch::nn::Module {
  torch::nn::Linear last = register_module("last", torch::nn::Linear(33, 3));
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 33));
  at::Tensor forward(const at::Tensor& x) { return last(torch::tanh(first(x))); }
};

struct SwitchedRun {
  SmallTraining::Result result;
  std::vector<std::string> notices, names;  // rank 0's; the strategy after each step
};

SwitchedRun switched_run(int ranks, std::int64_t steps, const std::function<void(SmallTraining&)>& set) {
  SmallTraining training("ddp", ranks);
  training.steps = steps;
  training.jobs.options.strategy.sync_every = 4;
  SwitchedRun run;
  training.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t) {
    if (system.compute().rank() == 0) run.names.push_back(system.compute().strategy().describe());
  };
  set(training);
  run.result = training.run();
  CHECK(testing::joined(run.result.errors) == "");
  return run;
}

std::string switch_refusal(const std::function<void(StrategyOptions&)>& set) {
  SmallTraining training("ddp", 2);
  set(training.jobs.options.strategy);
  training.steps = 1;
  return training.run().errors.front();
}

}  // namespace

TEST_CASE("[X06] ddp with the bf16 hook from step 6 on has the bits of a run that was saved at step 6 and goes on so") {
  const auto first = switched_run(2, 6, [](SmallTraining&) {});
  SmallTraining rest("ddp", 2);
  rest.saved = first.result.state;
  rest.first_step = 6;
  rest.steps = 6;
  rest.jobs.options.strategy.comm_hook = "bf16";
  const auto expected = rest.run();
  CHECK(testing::joined(expected.errors) == "");
  const auto found = switched_run(2, 12, [](SmallTraining& t) { t.jobs.options.strategy.switch_at = "6:ddp+bf16"; });
  CHECK(largest_difference(found.result.state, expected.state) == 0);
  const auto plain = switched_run(2, 12, [](SmallTraining&) {});
  CHECK(largest_difference(found.result.state, plain.result.state) > 0);
  CHECK_THAT(found.names.at(5), Catch::Contains("hook none"));
  CHECK_THAT(found.names.at(6), Catch::Contains("hook bf16"));
}

TEST_CASE("[X06] ddp with another hook keeps the measured order of its buckets") {
  std::vector<std::map<std::string, std::string>> states;
  const auto found = switched_run(2, 8, [&](SmallTraining& training) {
    training.jobs.options.strategy.switch_at = "6:ddp+bf16";
    training.model = [] { return testing::make_seeded<LastFirstImpl>(1); };
    training.forward = [](torch::nn::Module& model, const at::Tensor& x) {
      return dynamic_cast<LastFirstImpl&>(model).forward(x);
    };
    training.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t) {
      auto& compute = system.compute();
      if (compute.rank() == 0) states.push_back(compute.strategy().saved_state().state());
    };
  });
  REQUIRE(states.size() == 8);
  CHECK(states[5].at("ddp.measured") == "1");
  CHECK(states[6].at("ddp.measured") == "1");
  CHECK(states[6].at("ddp.bucket_order") == states[5].at("ddp.bucket_order"));
}

TEST_CASE(
    "[X06] diloco from step 6 on begins with the model of step 6, its optimizer, and outer parameters that are the "
    "model") {
  const int ranks = GENERATE(2, 4);
  const auto first = switched_run(ranks, 6, [](SmallTraining& t) { t.optimizer.momentum = 0.9; });
  SmallTraining rest("diloco", ranks);
  rest.optimizer.momentum = 0.9;
  rest.saved = first.result.state;
  rest.first_step = 6;
  rest.steps = 10;
  rest.jobs.options.strategy.sync_every = 4;
  rest.before_step = [](RankSystem& system, torch::nn::Module&,
                        std::int64_t step) {  // outer steps are counted from the switch on
    if (step == 6)
      system.compute().strategy().saved_state().load_state(
          {{"local_steps.outer_steps", "0"}, {"local_steps.last", "0"}, {"local_steps.next", "10"}});
  };
  const auto expected = rest.run();
  CHECK(testing::joined(expected.errors) == "");
  const auto found = switched_run(ranks, 16, [](SmallTraining& t) {
    t.optimizer.momentum = 0.9;
    t.jobs.options.strategy.switch_at = "6:diloco";
  });
  CHECK(largest_difference(found.result.state, expected.state) == 0);
}

TEST_CASE("[X06] back from diloco the model is the mean of the replicas, and all ranks go on alike") {
  const int overlap = GENERATE(0, 2);
  std::mutex mutex;
  std::map<std::string, at::Tensor> mean, moment;
  std::map<std::string, std::vector<at::Tensor>> after;
  const auto collect = [&](RankSystem& system, Optimizer& optimizer) {
    std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : system.compute().strategy().replicated_tensors())
      after[name].push_back(tensor.clone());
    for (const auto& [name, tensor] : optimizer.state()) after["optimizer." + name].push_back(tensor.clone());
  };
  const auto set = [&](SmallTraining& t, const char* plan) {
    t.optimizer.momentum = 0.9;
    t.jobs.options.strategy.diloco_overlap = overlap;
    t.jobs.options.strategy.switch_at = plan;
    t.at_end = collect;
  };
  // Step 6 is the last of diloco, and between two outer steps, or with one under way: only a switch brings the replicas
  // together.
  (void)switched_run(3, 7, [&](SmallTraining& t) { set(t, "2:diloco,7:ddp"); });
  for (const auto& [name, replicas] : after) {
    INFO(name);
    REQUIRE(replicas.size() == 3);
    for (const auto& replica : replicas) CHECK(replica.equal(replicas.front()));
  }
  const auto together = std::exchange(after, {});
  if (overlap == 0) {
    (void)switched_run(3, 7, [&](SmallTraining& t) { set(t, "2:diloco"); });
    for (const auto& [name, replicas] : after) {
      INFO(name);
      if (name == "first.weight") CHECK_FALSE(replicas[0].equal(replicas[1]));
      if (!replicas[0].is_floating_point()) continue;
      const auto by_hand = (replicas[0] + replicas[1] + replicas[2]) / 3;
      CHECK((together.at(name).front() - by_hand).abs().max().item<double>() < 1e-6);
    }
  }
  const auto found = switched_run(3, 60, [&](SmallTraining& t) {
    set(t, "20:ddp+bf16,30:diloco,50:ddp");
    t.jobs.options.training.verify_every = 3;  // replicas that differ would be named
    t.jobs.options.training.on_divergence = "stop";
    t.at_end = [](auto&, auto&) {};
  });
  CHECK(found.result.losses.back() < 0.7 * found.result.losses.front());
}

namespace {

// Ends what a rank's thread does at a place in step 4.
class InterruptAt final : public FaultWatch {
 public:
  explicit InterruptAt(std::string place) : place_(std::move(place)) {}
  void at(const char* place, std::int64_t step) override {
    if (step == 4 && place == place_) throw std::runtime_error("interrupted");
  }

 private:
  std::string place_;
};

}  // namespace

// Rank 1 has heard nothing of the barrier that the others have passed: as where a rank is lost just there.
TEST_CASE("[X06] a rank that is interrupted behind the barrier of a switch follows the others in the next generation") {
  SmallTraining training("ddp", 3);
  auto& options = training.jobs.options;
  options.strategy.switch_at = "2:diloco,5:ddp";
  options.training.verify_every = 1;  // replicas that differ would be named
  options.training.on_divergence = "stop";
  training.optimizer.momentum = 0.9;
  const auto errors = training.jobs.run([&](RankSystem& system) {
    auto& compute = system.compute();
    const auto model = training.model();
    compute.distribute(model);
    const auto optimizer = training.make(*model);
    auto watch = fault_watch();
    std::vector<std::string> news;
    set_fault_watch(std::make_shared<InterruptAt>(compute.rank() == 1 ? "switch" : "switched"));
    for (std::int64_t s = 0; s < 9; ++s) {
      const auto [input, target] = testing::small_batch(s, 15);
      compute.backward(
          torch::nn::functional::cross_entropy(training.forward(*model, input.narrow(0, compute.rank() * 5, 5)),
                                               target.narrow(0, compute.rank() * 5, 5)),
          5);
      auto& strategy = compute.strategy();
      if (s != 4) {
        for (const auto& notice : compute.step(*optimizer, 0.1).notices) news.push_back(notice);
        continue;
      }
      CHECK_THROWS_WITH(compute.step(*optimizer, 0.1), "interrupted");
      CHECK(strategy.name() == (compute.rank() == 1 ? "diloco" : "ddp"));
      auto next = testing::next_generation(compute);
      next.announce = [&](std::string notice) { news.push_back(std::move(notice)); };
      strategy.rejoin(std::move(next));
      strategy.set_rollback_point();
      CHECK(strategy.name() == "ddp");
      for (const auto& state : {strategy.replicated_tensors(), optimizer->state()}) {
        const auto hash = hash_tensors(state);
        for (const auto& other :
             compute.program_communicator().all_gather_bytes({reinterpret_cast<const char*>(&hash), sizeof hash}))
          CHECK(std::memcmp(other.data(), &hash, sizeof hash) == 0);
      }
    }
    set_fault_watch(std::move(watch));
    CHECK((news == std::vector<std::string>{"step 2: the strategy is now diloco, before it was ddp",
                                            "step 5: the strategy is now ddp, before it was diloco"}));
  });
  testing::check_no_errors(errors);
}

TEST_CASE("[X06] a strategy that switches can do what the one of the time can, or says why not") {
  for (const auto* strategy : {"ddp", "local_sgd", "diloco"}) {
    SmallTraining training(strategy, 2);
    training.steps = 1;
    training.jobs.options.strategy.switch_at = "2:ddp";
    training.before_step = [&](RankSystem& system, torch::nn::Module&, std::int64_t) {
      StrategyContext context = testing::next_generation(system.compute());
      context.options.switch_at.clear();
      auto& switching = system.compute().strategy();
      const auto alone = make_strategy(std::move(context));
      CHECK(testing::lost_capabilities(switching.capabilities(), alone->capabilities()) == "");
      const auto held = switching.capability<DeviceMemory>()->held_memory();
      CHECK(std::any_of(held.begin(), held.end(), [](const auto& part) { return part.what == "gradient buckets"; }));
    };
    CHECK(testing::joined(training.run().errors) == "");
  }
}

TEST_CASE("[X06] each switch is reported once") {
  std::mutex mutex;
  std::vector<std::string> notices;
  SmallTraining training("ddp", 2);
  training.jobs.options.strategy.switch_at = "3:ddp+fp16,5:local_sgd";
  auto& jobs = training.jobs;
  const auto errors = jobs.run([&](RankSystem& system) {
    const auto model = training.model();
    system.compute().distribute(model);
    const auto optimizer = training.make(*model);
    for (std::int64_t s = 0; s < 8; ++s) {
      const auto [input, target] = testing::small_batch(s);
      const auto part = input.narrow(0, system.compute().rank() * 8, 8);
      system.compute().backward(torch::nn::functional::cross_entropy(training.forward(*model, part),
                                                                     target.narrow(0, system.compute().rank() * 8, 8)),
                                8);
      const auto report = system.compute().step(*optimizer, 0.1);
      std::lock_guard lock(mutex);
      if (system.compute().rank() == 0) notices.insert(notices.end(), report.notices.begin(), report.notices.end());
    }
  });
  testing::check_no_errors(errors);
  CHECK((notices == std::vector<std::string>{"step 3: the strategy is now ddp+fp16, before it was ddp",
                                             "step 5: the strategy is now local_sgd, before it was ddp+fp16"}));
}

TEST_CASE("[X06] what cannot be switched while it runs is refused before the first step, with the reason") {
  CHECK_THAT(switch_refusal([](StrategyOptions& o) { o.strategy = "fsdp", o.switch_at = "5:ddp"; }),
             Catch::Contains("switch_at") && Catch::Contains("keeps a shard"));
  CHECK_THAT(switch_refusal([](StrategyOptions& o) { o.strategy = "pipeline", o.switch_at = "5:ddp"; }),
             Catch::Contains("part of the model"));
  CHECK_THAT(switch_refusal([](StrategyOptions& o) { o.switch_at = "5:gossip"; }), Catch::Contains("'gossip'"));
  CHECK_THAT(switch_refusal([](StrategyOptions& o) { o.switch_at = "5:ddp+bf61"; }),
             Catch::Contains("no communication hook 'bf61'"));
  CHECK_THAT(
      switch_refusal([](StrategyOptions& o) { o.switch_at = "5:diloco", o.diloco_fragments = 5, o.sync_every = 4; }),
      Catch::Contains("diloco_fragments"));
}
