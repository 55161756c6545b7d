// ddp's early update: the same training, made in a second copy while backward goes on.
#include "strategies/replicated/early_update.hpp"

#include <limits>

#include "tests/catch.hpp"
#include "tests/support/rank_threads.hpp"
#include "tests/support/small_training.hpp"

using namespace troupe;
using testing::joined;
using testing::largest_difference;
using testing::SmallTraining;

namespace {

SmallTraining::Result train(int ranks, const std::function<void(SmallTraining&)>& configure, bool early,
                            std::int64_t verify_every = 7) {
  SmallTraining training("ddp", ranks);
  training.steps = 20;
  training.jobs.options.strategy.early_update = early;
  training.jobs.options.training.verify_every = verify_every;
  configure(training);
  auto result = training.run();
  CHECK(joined(result.errors).empty());
  return result;
}

const std::vector<std::pair<std::string, std::function<void(SmallTraining&)>>> kOptimizers = {
    {"adamw", [](SmallTraining& t) { t.optimizer.optimizer = "adamw", t.lr = 0.01; }},
    {"sgd", [](SmallTraining& t) { t.optimizer.momentum = 0; }},
    {"momentum", [](SmallTraining&) {}},
    {"nesterov", [](SmallTraining& t) { t.optimizer.nesterov = true; }},
};

// Some of its parameters are used in some steps.
struct Wandering : torch::nn::Module {
  torch::nn::Linear always = register_module("always", torch::nn::Linear(8, 3));
  torch::nn::Linear sometimes = register_module("sometimes", torch::nn::Linear(3, 3));
  torch::nn::Linear never = register_module("never", torch::nn::Linear(5, 7));
  bool uses = false;  // in the step that comes
};

// Its gradients come in another order than it registers them, and in a third one where it is turned; they are more than
// ranks reduce in one meeting.
struct Wide : torch::nn::Module {
  torch::nn::Linear last = register_module("last", torch::nn::Linear(701, 3));
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 701));
  torch::nn::Linear beside = register_module("beside", torch::nn::Linear(8, 3));
  bool turned = false;
};

}  // namespace

TEST_CASE(
    "[D16] a step that is updated early has the bits of one that is not, with every optimizer and number of ranks") {
  const auto [name, configure] = GENERATE(from_range(kOptimizers));
  const int ranks = GENERATE(1, 2, 3, 4);
  INFO(name << ", " << ranks << " ranks");
  const auto early = train(ranks, configure, true);
  // Replicas are compared in each step, and in such a step nothing is early; one rank has nobody to compare with.
  const auto late = train(ranks, configure, true, 1);
  CHECK(early.losses == late.losses);
  CHECK(largest_difference(early.state, late.state) == 0);
  const auto plain = train(ranks, configure, false);
  CHECK(largest_difference(early.losses, plain.losses) < 1e-5);
  CHECK(largest_difference(early.state, plain.state) < 1e-5);
}

TEST_CASE(
    "[D16] the update is early: the optimizer is not asked from the second step on, and the parameters change places "
    "with each step") {
  struct Counting final : Optimizer {
    Counting(std::unique_ptr<Optimizer> inner, int& asked) : inner(std::move(inner)), asked(asked) {}
    std::string name() const override { return inner->name(); }
    void step(double lr) override { inner->step(lr); }
    NamedTensors state() override { return inner->state(); }
    void load_state(const NamedTensors& state) override { inner->load_state(state); }
    const std::vector<ParameterGroup>& groups() const override { return inner->groups(); }
    std::vector<ElementState> elements(std::string& why_not) override { return ++asked, inner->elements(why_not); }
    std::unique_ptr<Optimizer> inner;
    int& asked;
  };
  SmallTraining training("ddp", 1);
  training.steps = 9;
  training.jobs.options.strategy.early_update = true;
  int asked = 0;
  training.make = [&](torch::nn::Module& model) {
    return std::make_unique<Counting>(make_optimizer(training.optimizer, testing::one_group(model)), asked);
  };
  std::vector<const void*> places;
  training.before_step = [&](auto&, torch::nn::Module& model, auto) {
    places.push_back(model.parameters()[0].const_data_ptr());
  };
  CHECK(joined(training.run().errors).empty());
  CHECK(asked == 2);  // the first step's own update, and to move what is updated
  REQUIRE(places.size() == 9);
  for (std::size_t s = 3; s < places.size(); ++s) {
    CHECK(places[s] != places[s - 1]);
    if (s > 4) CHECK(places[s] == places[s - 2]);
  }
}

TEST_CASE("[D16] micro-batches, weights, buckets of another size and their new order go with it") {
  const int which = GENERATE(0, 1, 2, 3);
  const auto configure = [&](SmallTraining& t) {
    t.optimizer.optimizer = "adamw";
    t.lr = 0.01;
    if (which == 0) t.jobs.options.training.grad_accum_steps = 4;
    if (which == 1) t.weight_of = [](int rank, std::int64_t) { return rank == 0 ? 2.0 : 0.0; };
    if (which == 2) t.jobs.options.strategy.bucket_cap_mb = 25;
    if (which == 3) {
      t.model = [] { return testing::make_seeded<Wide>(1); };
      t.forward = [](torch::nn::Module& module, const at::Tensor& x) {
        auto& model = dynamic_cast<Wide&>(module);
        const auto before = model.turned ? model.beside(x) : at::Tensor();
        const auto through = model.last(torch::tanh(model.first(x)));
        return through + (model.turned ? before : model.beside(x));
      };
      t.before_step = [](auto&, torch::nn::Module& model, std::int64_t step) {
        dynamic_cast<Wide&>(model).turned = step >= 8;
      };
    }
  };
  const auto early = train(2, configure, true), late = train(2, configure, true, 1);
  CHECK(early.losses == late.losses);
  CHECK(largest_difference(early.state, late.state) == 0);
}

TEST_CASE(
    "[D16] parameters that no rank used are not updated early, nor decayed, those that one rank used are, on all") {
  const auto configure = [optimizer = std::string(GENERATE("adamw", "sgd"))](SmallTraining& t) {
    t.optimizer.weight_decay = 0.1;
    t.optimizer.optimizer = optimizer;
    t.model = [] { return testing::make_seeded<Wandering>(1); };
    t.before_step = [](RankSystem& system, torch::nn::Module& model, std::int64_t step) {
      dynamic_cast<Wandering&>(model).uses = step % 3 != 0 && (step % 2 == 0 || system.compute().rank() == 0);
    };
    t.forward = [](torch::nn::Module& module, const at::Tensor& x) {
      auto& model = dynamic_cast<Wandering&>(module);
      const auto y = model.always(x);
      return model.uses ? model.sometimes(y) : y;
    };
  };
  const auto early = train(2, configure, true), late = train(2, configure, true, 1);
  CHECK(largest_difference(early.state, late.state) == 0);
  CHECK(at::equal(early.at("model.never.weight"), testing::make_seeded<Wandering>(1)->never->weight));
  CHECK(early.at("optimizer.sometimes.weight.step").item<float>() == 13);  // of 20, less every third
}

TEST_CASE("[D16] a step that is not finite leaves no trace of its early update") {
  const auto configure = [](SmallTraining& t) {
    t.jobs.options.training.on_not_finite = "skip";
    t.optimizer.optimizer = "adamw";
    t.weight_of = [](int rank, std::int64_t step) {
      return rank == 1 && step % 4 == 2 ? std::numeric_limits<double>::infinity() : 1.0;
    };
  };
  const auto early = train(2, configure, true), late = train(2, configure, true, 1);
  CHECK(largest_difference(early.state, late.state) == 0);
  CHECK(early.at("optimizer.first.weight.step").item<float>() == 15);
}

TEST_CASE("[D16] parameters that a program puts elsewhere between two steps are found there") {
  const auto moved = [](SmallTraining& t) {
    t.before_step = [](auto&, torch::nn::Module& model, std::int64_t step) {
      if (step != 8) return;
      torch::NoGradGuard no_grad;
      for (auto& parameter : model.parameters()) parameter.set_data(parameter.clone() * 0.5);
    };
  };
  const auto early = train(2, moved, true), late = train(2, moved, true, 1);
  CHECK(early.losses == late.losses);
  CHECK(largest_difference(early.state, late.state) == 0);
}

TEST_CASE("[D16] a parameter with two names is updated as one") {
  const auto configure = [](SmallTraining& t) {
    t.optimizer.optimizer = "adamw";
    t.lr = 0.01;
    t.model = [] {
      auto model = testing::make_seeded<Wandering>(1);
      model->register_parameter("again", model->always->weight);
      return model;
    };
    t.forward = [](torch::nn::Module& model, const at::Tensor& x) { return dynamic_cast<Wandering&>(model).always(x); };
  };
  const auto early = train(2, configure, true), late = train(2, configure, true, 1);
  CHECK(largest_difference(early.state, late.state) == 0);
  CHECK_FALSE(at::equal(early.at("model.always.weight"), testing::make_seeded<Wandering>(1)->always->weight));
  CHECK(at::equal(early.at("model.always.weight"), early.at("model.again")));
}

TEST_CASE(
    "[D16] moments are one memory for the ranks of a host, which nobody writes while another may read it, and each "
    "rank's own in the end") {
  test::GroupOptions group;
  group.backend = {"shm", "shm"};
  group.world_size = 3;
  CHECK_NOTHROW(test::run_ranks(group, [&](Communicator& communicator) {
    const auto model = testing::make_seeded<testing::SmallMlpImpl>(1);
    std::vector<at::Tensor> parameters;
    std::vector<ParameterLayout> layout;
    for (const auto& item : model->named_parameters()) {
      parameters.push_back(item.value());
      layout.push_back({item.key(), item.value().sizes().vec(), item.value().scalar_type(), true});
    }
    OptimizerOptions adamw;
    adamw.optimizer = "adamw";
    const auto optimizer = make_optimizer(adamw, testing::one_group(*model));
    std::string why;
    auto moment = optimizer->elements(why).at(0).first;
    auto update = std::make_unique<EarlyUpdate>(parameters, plan_buckets(layout, registration_order(layout), 1, 1),
                                                *optimizer, communicator);
    const auto shown = moment.detach();
    for (auto& parameter : parameters) parameter.mutable_grad() = at::ones_like(parameter);
    update->update(0.1);
    test::require(at::equal(shown, at::zeros_like(shown)), "what the step before shows is not written");
    const auto value = moment.clone();
    test::require(value.abs().min().item<float>() > 0, "the step changed the moment");
    communicator.barrier();
    if (communicator.rank() == 1) moment.fill_(7);
    communicator.barrier();
    test::require(at::equal(moment, at::full_like(moment, 7)), "the moment is the one that rank 1 wrote");
    communicator.barrier();
    if (communicator.rank() == 1) moment.copy_(value);
    communicator.barrier();
    update.reset();
    communicator.barrier();
    moment.fill_(static_cast<float>(communicator.rank()));
    communicator.barrier();
    test::require(at::equal(moment, at::full_like(moment, communicator.rank())), "the moment is this rank's own");
    test::require(optimizer->elements(why).at(0).first.const_data_ptr() == moment.const_data_ptr(),
                  "the optimizer has the same tensor");
  }));
}

TEST_CASE("[D16] a parameter that would be updated in some steps only is refused by its name") {
  SmallTraining training("ddp", 2);
  training.jobs.options.strategy.early_update = true;
  training.steps = 4;
  std::string refused;
  SECTION("the optimizer has it, the model does not") {
    training.make = [&](torch::nn::Module& model) {
      auto groups = testing::one_group(model);
      groups[0].parameters.emplace_back("stranger", torch::zeros({3}).set_requires_grad(true));
      return make_optimizer(training.optimizer, groups);
    };
    refused = "parameter stranger is in the optimizer";
  }
  SECTION("its strides changed") {
    training.before_step = [](auto&, torch::nn::Module& module, std::int64_t step) {
      if (step != 2) return;
      auto& weight = dynamic_cast<testing::SmallMlpImpl&>(module).second->weight;
      weight.set_data(weight.detach().t().contiguous().t());
    };
    refused = "parameter second.weight has changed its shape, dtype or strides";
  }
  CHECK_THAT(joined(training.run().errors), Catch::Contains("early_update") && Catch::Contains(refused));
}

TEST_CASE("[D16] every step has the same optimizer, early or not") {
  SmallTraining training("ddp", 2);
  training.jobs.options.strategy.early_update = true;
  training.jobs.options.training.verify_every = 1;  // none is early
  training.steps = 3;
  training.at_end = [&](RankSystem& system, Optimizer&) {
    auto model = testing::make_seeded<testing::SmallMlpImpl>(1);
    const auto another = training.make(*model);
    auto& compute = system.compute();
    compute.backward(compute.strategy().replicated_tensors()[0].second.sum().set_requires_grad(true), 8);
    CHECK_THROWS_WITH(compute.step(*another, 0.1),
                      Catch::Contains("it was given a different optimizer than earlier steps"));
    throw Error(ErrorCode::user, "test", "over");
  };
  CHECK_THAT(joined(training.run().errors), Catch::Contains("over"));
}

TEST_CASE("[D16] what can't be updated early is refused with the reason") {
  const auto refused = [](const std::function<void(SmallTraining&)>& configure, const std::string& strategy = "ddp") {
    SmallTraining training(strategy, 2);
    training.steps = 3;
    training.jobs.options.strategy.early_update = true;
    configure(training);
    return joined(training.run().errors);
  };
  using Catch::Contains;
  CHECK_THAT(refused([](auto& t) { t.jobs.options.training.clip_norm = 1; }),
             Contains("early_update") && Contains("clip_norm"));
  CHECK_THAT(refused([](auto& t) { t.jobs.options.training.loss_scaler = "on"; }),
             Contains("early_update") && Contains("loss scaler"));
  CHECK_THAT(refused([](auto& t) { t.jobs.options.strategy.comm_hook = "bf16"; }),
             Contains("early_update") && Contains("comm_hook bf16"));
  CHECK_THAT(refused([](auto& t) { t.jobs.options.strategy.switch_at = "2:diloco"; }),
             Contains("early_update") && Contains("switch_at"));
  CHECK_THAT(refused([](auto&) {}, "fsdp full_shard"), Contains("early_update") && Contains("strategy fsdp"));
  CHECK_THAT(refused([](auto& t) {
               t.model = [] {
                 auto model = testing::make_seeded<testing::SmallMlpImpl>(1);
                 model->second->to(at::kDouble);
                 return model;
               };
             }),
             Contains("early_update") && Contains("second.weight is Double"));
}

TEST_CASE(
    "[D16] a step that gets another optimizer or rate than its update was begun with ends the job, with nothing "
    "shown") {
  const bool other_rate = GENERATE(false, true);
  SmallTraining training("ddp", 1);
  training.jobs.options.strategy.early_update = true;
  training.steps = 4;
  const auto make = training.make;
  Optimizer* used = nullptr;
  training.make = [&](torch::nn::Module& model) {
    auto made = make(model);
    used = made.get();
    return made;
  };
  training.before_step = [&](RankSystem& system, torch::nn::Module& model, std::int64_t step) {
    if (step != 3) return;
    auto& compute = system.compute();
    const auto before = model.parameters()[0].clone();
    const auto another = make(model);
    const auto [input, target] = testing::small_batch(step);
    compute.expect_rate(other_rate ? 0.2 : 0.1);
    compute.backward(torch::nn::functional::cross_entropy(training.forward(model, input), target), 16);
    const char* what = other_rate ? "a different rate" : "a different optimizer";
    CHECK_THROWS_WITH(compute.step(other_rate ? *used : *another, 0.1),
                      Catch::Contains("backward has begun the update") && Catch::Contains(what));
    CHECK(at::equal(model.parameters()[0], before));
    throw Error(ErrorCode::user, "test", "over");
  };
  CHECK_THAT(joined(training.run().errors), Catch::Contains("over"));
}
