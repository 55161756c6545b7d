#include "tensor_io/optimizer/torch_optimizer.hpp"

#include "tensor_io/base/error.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tests/catch.hpp"
#include "tests/support/golden.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    weight = register_parameter("weight", pattern({6, 4}, 1));
    bias = register_parameter("bias", pattern({6}, 2));
    unused = register_parameter("unused", pattern({3}, 3));
  }
  at::Tensor weight, bias, unused;
};

using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

template <class T, class Options>
Factory factory(Options options) {
  return [options](std::vector<at::Tensor> parameters) { return std::make_unique<T>(std::move(parameters), options); };
}

void run(Optimizer& optimizer, ModelImpl& model, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    model.weight.mutable_grad() = pattern({6, 4}, step + 4);
    model.bias.mutable_grad() = step == 1 ? at::Tensor() : pattern({6}, step + 5);
    optimizer.step(0.1 / (step + 1));
  }
}

}  // namespace

TEST_CASE("[T02] a group that is added to a torch::optim optimizer is in its state, and slices are not mixed with it") {
  ModelImpl model;
  torch::optim::SGD sgd({model.weight}, torch::optim::SGDOptions(1).momentum(0.9));
  TorchOptimizer optimizer(sgd, model);
  run(optimizer, model, 0, 1);
  sgd.add_param_group(torch::optim::OptimizerParamGroup({model.bias}));
  optimizer.follow(model);
  run(optimizer, model, 2, 3);
  std::vector<std::string> names;
  for (const auto& [name, value] : optimizer.state()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"weight.momentum_buffer", "bias.momentum_buffer"});

  torch::optim::SGD other({model.weight}, torch::optim::SGDOptions(1));
  TorchOptimizer sliced(other, model);
  const auto id = sliced.id();
  sliced.replace_parameters([](const at::Tensor& parameter) { return parameter.detach().flatten().narrow(0, 0, 4); });
  sliced.follow(model);
  CHECK(sliced.id() == id);
  other.add_param_group(torch::optim::OptimizerParamGroup({model.bias}));
  CHECK_THROWS_WITH(sliced.follow(model), Catch::Contains("its groups have changed after the strategy gave it"));
  other.param_groups().clear();
  other.add_param_group(torch::optim::OptimizerParamGroup({model.weight}));  // as one that is made anew
  sliced.follow(model);
  CHECK(sliced.groups()[0].parameters[0].second.is_same(model.weight));
  CHECK(sliced.id() != id);
}

TEST_CASE(
    "[T02] a torch::optim optimizer's state goes by parameter name into another process's optimizer, bit for bit") {
  using namespace torch::optim;
  const auto [name, make] = GENERATE(table<std::string, Factory>({
      {"SGD", factory<SGD>(SGDOptions(1).momentum(0.9).nesterov(true))},
      {"Adam", factory<Adam>(AdamOptions(1).amsgrad(true))},
      {"AdamW", factory<AdamW>(AdamWOptions(1))},
      {"RMSprop", factory<RMSprop>(RMSpropOptions(1).momentum(0.5).centered(true))},
      {"Adagrad", factory<Adagrad>(AdagradOptions(1).lr_decay(0.1))},
  }));
  INFO(name);
  ModelImpl whole, half;
  auto one = make(whole.parameters());
  TorchOptimizer uninterrupted(*one, whole);
  run(uninterrupted, whole, 0, 6);

  NamedTensors saved;
  {
    auto two = make(half.parameters());
    TorchOptimizer before(*two, half);
    run(before, half, 0, 3);
    for (const auto& [key, value] : before.state()) saved.emplace_back(key, value.clone());
  }
  CHECK(std::any_of(saved.begin(), saved.end(), [](const auto& item) { return item.first.starts_with("bias."); }));
  auto three = make(half.parameters());
  TorchOptimizer after(*three, half);
  after.load_state(saved);
  run(after, half, 3, 6);
  CHECK(at::equal(whole.weight, half.weight));
  CHECK(at::equal(whole.bias, half.bias));
  CHECK(at::equal(half.unused, pattern({3}, 3)));
  CHECK(max_difference(whole.weight, pattern({6, 4}, 1)) > 0);
}

TEST_CASE("[T01] a torch::optim optimizer keeps its groups' own rates, which a schedule multiplies") {
  ModelImpl model;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{model.weight}, std::make_unique<torch::optim::SGDOptions>(0));
  groups.emplace_back(std::vector<at::Tensor>{model.bias}, std::make_unique<torch::optim::SGDOptions>(0.02));
  torch::optim::SGD sgd(groups, torch::optim::SGDOptions(0.2));
  TorchOptimizer optimizer(sgd, model);
  const auto step = [&](double factor) {
    model.weight.mutable_grad() = at::ones({6, 4});
    model.bias.mutable_grad() = at::ones({6});
    optimizer.step(factor);
  };
  step(0.5);
  CHECK(at::equal(model.weight, pattern({6, 4}, 1)));
  CHECK(max_difference(model.bias, pattern({6}, 2) - 0.01) < 1e-7);
  CHECK(sgd.param_groups()[1].options().get_lr() == 0.02);  // the program may go by it
  sgd.param_groups()[0].options().set_lr(0.1);              // as a scheduler of its own does
  CHECK(optimizer.first_rate(0.5) == Approx(0.05));
  step(1);
  CHECK(max_difference(model.weight, pattern({6, 4}, 1) - 0.1) < 1e-7);
  CHECK(max_difference(model.bias, pattern({6}, 2) - 0.03) < 1e-7);
}

TEST_CASE("[T01] a tensor of two names has its first one in the state, and is stepped once however it is listed") {
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_parameter("first", pattern({3}, 1));
      register_parameter("second", first);
    }
    at::Tensor first;
  } model;
  REQUIRE(model.parameters().size() == 2);
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  TorchOptimizer optimizer(sgd, model);
  model.first.mutable_grad() = at::ones({3});
  optimizer.step(1);
  CHECK(max_difference(model.first, pattern({3}, 1) - 0.1) < 1e-7);
  const auto state = optimizer.state();
  REQUIRE(state.size() == 1);
  CHECK(state.front().first == "first.momentum_buffer");
}

TEST_CASE("LibTorch's AdamW and the fused one take the same steps and name their state alike") {
  ModelImpl ours, theirs;
  OptimizerOptions options;
  options.optimizer = "adamw";
  options.weight_decay = 0.01;
  auto fused = make_optimizer(options, {{{{"weight", ours.weight}, {"bias", ours.bias}}}});
  torch::optim::AdamW adamw({theirs.weight, theirs.bias}, torch::optim::AdamWOptions(1).weight_decay(0.01));
  TorchOptimizer adapter(adamw, theirs);
  run(*fused, ours, 0, 5);
  run(adapter, theirs, 0, 5);
  CHECK(max_difference(ours.weight, theirs.weight) < 1e-6);
  CHECK(max_difference(ours.bias, theirs.bias) < 1e-6);
  CHECK_NOTHROW(fused->load_state([&] {
    NamedTensors state = adapter.state();
    return state;
  }()));
}

TEST_CASE("an optimizer that a distributed step can't run is refused with the reason") {
  ModelImpl model, other;
  torch::optim::LBFGS lbfgs(model.parameters());
  CHECK_THROWS_WITH(TorchOptimizer(lbfgs, model), Catch::Contains("closure"));
  torch::optim::SGD foreign(other.parameters(), 0.1);
  CHECK_THROWS_WITH(TorchOptimizer(foreign, model),
                    Catch::Contains("parameter that the distributed model does not have"));
}

TEST_CASE("a torch::optim state that does not fit is refused and changes nothing") {
  ModelImpl model;
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(1));
  TorchOptimizer optimizer(adam, model);
  run(optimizer, model, 0, 2);
  NamedTensors state;
  for (const auto& [name, value] : optimizer.state()) state.emplace_back(name, value.clone());
  auto foreign = state;
  foreign.emplace_back("head.exp_avg", at::zeros({3}));
  CHECK_THROWS_WITH(optimizer.load_state(foreign), Catch::Contains("head.exp_avg"));
  auto missing = state;
  std::erase_if(missing, [](const auto& item) { return item.first == "weight.exp_avg_sq"; });
  CHECK_THROWS_WITH(optimizer.load_state(missing), Catch::Contains("weight.exp_avg_sq"));
  auto reshaped = state;
  for (auto& [name, value] : reshaped) {
    if (name == "weight.exp_avg") value = at::zeros({4, 6});
  }
  CHECK_THROWS_WITH(optimizer.load_state(reshaped), Catch::Contains("another shape"));
  const auto now = optimizer.state();
  REQUIRE(now.size() == state.size());
  for (std::size_t i = 0; i < now.size(); ++i) CHECK(at::equal(now[i].second, state[i].second));
}
