#include "tensor_io/optimizer/fused_optimizer.hpp"

#include <torch/torch.h>

#include "tensor_io/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/golden.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

// The parameters of the golden run: c has no gradient in steps 0 and 3.
NamedTensors golden_parameters() {
  NamedTensors parameters{{"a", pattern({3, 5}, 0)}, {"b", pattern({70}, 1)}, {"c", pattern({4}, 2)}};
  for (auto& [name, parameter] : parameters) parameter.requires_grad_();
  return parameters;
}

void set_gradients(NamedTensors& parameters, int step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto& [name, parameter] = parameters[i];
    parameter.mutable_grad() = name == "c" && (step == 0 || step == 3)
                                   ? at::Tensor()
                                   : pattern(parameter.sizes().vec(), 7 * step + static_cast<int>(i) + 1);
  }
}

void run(Optimizer& optimizer, NamedTensors& parameters, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    set_gradients(parameters, step);
    optimizer.step(0.1 / (step + 1));
  }
}

OptimizerOptions sgd(double momentum, bool nesterov, double weight_decay) {
  OptimizerOptions options;
  options.momentum = momentum;
  options.nesterov = nesterov;
  options.weight_decay = weight_decay;
  return options;
}

OptimizerOptions adamw() {
  OptimizerOptions options;
  options.optimizer = "adamw";
  options.beta2 = 0.95;
  options.weight_decay = 1e-2;
  return options;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  // PyTorch's own results differ in the last bits on a processor without fused multiply-add.
  if (at::get_cpu_capability() == "DEFAULT") return max_difference(a, b) < 1e-6;
  return at::equal(a.detach().flatten(), b.flatten());
}

}  // namespace

TEST_CASE("[T02] SGD and AdamW compute the bits of PyTorch's fused optimizers") {
  const Golden golden("training.txt");
  const auto [name, options] = GENERATE(table<std::string, OptimizerOptions>({
      {"sgd_momentum", sgd(0.9, false, 1e-4)},
      {"sgd_nesterov", sgd(0.9, true, 1e-2)},
      {"sgd_plain", sgd(0, false, 1e-2)},
      {"adamw", adamw()},
  }));
  auto parameters = golden_parameters();
  auto optimizer = make_optimizer(options, {{parameters}});
  run(*optimizer, parameters, 0, 6);
  for (const auto& [parameter, value] : parameters) {
    INFO(name << "." << parameter);
    CHECK(same_bits(value, golden.tensor(name + "." + parameter)));
  }
  for (const auto& [field, value] : optimizer->state()) {
    if (options.optimizer == "sgd" && field.ends_with(".step")) continue;  // ours alone
    INFO(name << "." << field);
    CHECK(same_bits(value, golden.tensor(name + "." + field)));
  }
}

TEST_CASE("[T02] a parameter without a gradient is left alone, not decayed, and keeps its own count of steps") {
  auto parameters = golden_parameters();
  auto optimizer = make_optimizer(adamw(), {{parameters}});
  run(*optimizer, parameters, 0, 1);
  CHECK(at::equal(parameters[2].second, pattern({4}, 2)));
  for (const auto& [name, value] : optimizer->state()) {
    if (name == "a.step") CHECK(value.item<float>() == 1);
    if (name == "c.step") CHECK(value.item<float>() == 0);
  }
}

TEST_CASE("an optimizer's state, loaded into another, continues bit for bit") {
  const auto options = GENERATE(sgd(0.9, true, 1e-2), adamw());
  auto whole = golden_parameters(), half = golden_parameters();
  auto uninterrupted = make_optimizer(options, {{whole}});
  run(*uninterrupted, whole, 0, 6);

  auto before = make_optimizer(options, {{half}});
  run(*before, half, 0, 3);
  NamedTensors saved;
  for (const auto& [name, value] : before->state()) saved.emplace_back(name, value.clone());
  auto after = make_optimizer(options, {{half}});
  after->load_state(saved);
  run(*after, half, 3, 6);
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(at::equal(whole[i].second, half[i].second));
}

TEST_CASE("a group has its own rate and weight decay") {
  auto parameters = golden_parameters();
  ParameterGroup frozen{{parameters[0]}}, plain{{parameters[1]}};
  frozen.lr_scale = 0;
  plain.weight_decay = 0;
  auto optimizer = make_optimizer(sgd(0, false, 0.5), {frozen, plain});
  set_gradients(parameters, 1);
  const auto expected = parameters[1].second.detach() - 0.25 * parameters[1].second.grad();
  optimizer->step(0.25);
  CHECK(at::equal(parameters[0].second, pattern({3, 5}, 0)));
  CHECK(max_difference(parameters[1].second, expected) < 1e-7);
}

TEST_CASE("moments lie at 64 bytes, in their parameter's strides") {
  auto weight = at::randn({4, 3, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  auto bias = at::randn({3}).requires_grad_();
  auto optimizer = make_optimizer(adamw(), {{{{"bias", bias}, {"weight", weight}}}});
  for (const auto& [name, value] : optimizer->state()) {
    if (name.ends_with(".step")) continue;
    CHECK(reinterpret_cast<std::uintptr_t>(value.data_ptr()) % 64 == 0);
    CHECK((value.strides() == (name.starts_with("weight") ? weight : bias).strides()));
  }
}

TEST_CASE("a gradient in other strides than its parameter's is applied element by element") {
  auto weight = pattern({2, 3, 4, 4}, 1).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  auto plain = weight.detach().contiguous().clone().requires_grad_();
  weight.mutable_grad() = pattern({2, 3, 4, 4}, 2);
  plain.mutable_grad() = pattern({2, 3, 4, 4}, 2);
  make_optimizer(sgd(0.9, false, 0), {{{{"w", weight}}}})->step(0.5);
  make_optimizer(sgd(0.9, false, 0), {{{{"w", plain}}}})->step(0.5);
  CHECK(at::equal(weight, plain));
}

TEST_CASE("parameters of several dtypes share a group") {
  auto single = pattern({20}, 1).requires_grad_(), twice = pattern({20}, 1).to(at::kDouble).requires_grad_();
  single.mutable_grad() = pattern({20}, 2);
  twice.mutable_grad() = pattern({20}, 2).to(at::kDouble);
  make_optimizer(adamw(), {{{{"f32", single}, {"f64", twice}}}})->step(0.1);
  CHECK(max_difference(single, twice) < 1e-6);
  CHECK(max_difference(single, pattern({20}, 1)) > 0.05);
}

TEST_CASE("[F09] a parameter that a model has under two names is updated once") {
  auto parameter = torch::ones({4}).requires_grad_();
  auto optimizer = make_optimizer(sgd(0, false, 0), {{{{"embedding", parameter}, {"head", parameter}}}});
  parameter.mutable_grad() = torch::ones({4});
  optimizer->step(0.25);
  CHECK((parameter.equal(torch::full({4}, 0.75))));
  CHECK(optimizer->state().size() == 1);
}

TEST_CASE("[F06] slices in the place of parameters keep names and groups, and only before the first step") {
  auto a = torch::ones({8}).requires_grad_(), b = torch::ones({4}).requires_grad_();
  auto slice = torch::full({3}, 2.0).requires_grad_();
  const auto replacement = [&](const at::Tensor& parameter) { return parameter.is_same(a) ? slice : at::empty({0}); };
  auto optimizer = make_optimizer(sgd(0.9, false, 0), {{{{"a", a}}, 2}, {{{"b", b}}}});
  optimizer->replace_parameters(replacement);
  slice.mutable_grad() = torch::ones({3});
  a.mutable_grad() = torch::ones({8});
  optimizer->step(0.25);
  CHECK((slice.equal(torch::full({3}, 1.5))));
  CHECK((a.equal(torch::ones({8}))));
  const auto state = optimizer->state();
  CHECK(state.size() == 2);
  CHECK(state.front().first == "a.momentum_buffer");
  CHECK((state.front().second.sizes() == at::IntArrayRef{3}));
  CHECK_THROWS_WITH(optimizer->replace_parameters(replacement), Catch::Contains("has made steps"));
}

TEST_CASE("an optimizer's mistakes are refused by name") {
  auto parameters = golden_parameters();
  CHECK_THROWS_WITH(make_optimizer(sgd(0, true, 0), {{parameters}}), Catch::Contains("nesterov"));
  CHECK_THROWS_WITH(make_optimizer(sgd(0.9, false, -1), {{parameters}}), Catch::Contains("weight_decay"));
  CHECK_THROWS_WITH(make_optimizer(adamw(), {{parameters}, {parameters}}),
                    Catch::Contains("parameter a is in two groups"));
  auto adam_typo = adamw();
  adam_typo.optimizer = "adamx";
  CHECK_THROWS_WITH(make_optimizer(adam_typo, {{parameters}}),
                    Catch::Contains("adamx") && Catch::Contains("sgd, adamw"));
  CHECK_THROWS_WITH(make_optimizer(adamw(), {{{{"gaps", at::zeros({8}).slice(0, 0, 8, 2)}}}}), Catch::Contains("gaps"));

  auto optimizer = make_optimizer(adamw(), {{parameters}});
  parameters[0].second.mutable_grad() = at::zeros({15}).view({3, 5});
  NamedTensors state;
  for (const auto& [name, value] : optimizer->state()) state.emplace_back(name, at::ones_like(value));
  const auto untouched = [&] {
    for (const auto& [name, value] : optimizer->state()) {
      if (value.abs().sum().item<double>() != 0) return false;
    }
    return true;
  };
  auto missing = state;
  missing.pop_back();
  CHECK_THROWS_WITH(optimizer->load_state(missing), Catch::Contains("c.step"));
  auto foreign = state;
  foreign.emplace_back("d.step", at::zeros({}));
  CHECK_THROWS_WITH(optimizer->load_state(foreign), Catch::Contains("d.step"));
  auto reshaped = state;
  reshaped[0].second = at::zeros({5, 3});
  CHECK_THROWS_WITH(optimizer->load_state(reshaped), Catch::Contains("a.exp_avg"));
  CHECK(untouched());
}

TEST_CASE(
    "[T02] an update that is to be skipped leaves parameters, moments and counts, and the others are as if it had "
    "never been") {
  const auto options = GENERATE(sgd(0.9, false, 1e-4), sgd(0.9, true, 1e-2), sgd(0, false, 1e-2), adamw());
  const auto skipped = GENERATE(0, 3);
  auto mine = golden_parameters(), theirs = golden_parameters();
  auto deciding = make_optimizer(options, {{mine}}), plain = make_optimizer(options, {{theirs}});
  for (int step = 0; step < 6; ++step) {
    set_gradients(mine, step);
    set_gradients(theirs, step);
    const double lr = 0.1 / (step + 1);
    NamedTensors before;
    for (const auto& [name, parameter] : mine) before.emplace_back(name, parameter.detach().clone());
    deciding->step_unless(at::full({}, step == skipped ? 1 : 0, at::kFloat), lr);
    if (step == skipped) {
      for (std::size_t i = 0; i < mine.size(); ++i) CHECK(at::equal(mine[i].second, before[i].second));
    } else {
      plain->step(lr);
    }
  }
  for (std::size_t i = 0; i < mine.size(); ++i) CHECK(at::equal(mine[i].second, theirs[i].second));
  const auto a = deciding->state(), b = plain->state();
  REQUIRE((a.size() == b.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO(a[i].first);
    CHECK((a[i].first == b[i].first));
    CHECK(at::equal(a[i].second, b[i].second));
  }
}
