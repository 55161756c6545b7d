#include "tensor_io/kernels/update_kernels.hpp"

#include <torch/torch.h>

#include <cstring>
#include <vector>

#include "tensor_io/kernels/reduce_kernels.hpp"
#include "tensor_io/optimizer/element_update.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tests/catch.hpp"

using namespace troupe;

namespace troupe::kernels_generic {
void update(const UpdateTask& task) noexcept;
}

namespace {

at::Tensor random_numbers(std::int64_t numel, std::uint64_t seed, double scale = 1) {
  return at::empty({numel}, at::kFloat).normal_(0, scale, at::detail::createCPUGenerator(seed));
}

bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

OptimizerOptions options_of(const std::string& name, double momentum, bool nesterov) {
  OptimizerOptions options;
  options.optimizer = name;
  options.momentum = momentum;
  options.nesterov = nesterov;
  options.weight_decay = 0.02;
  return options;
}

struct Kind {
  std::string name;
  double momentum = 0;
  bool nesterov = false;
};
const std::vector<Kind> kKinds = {{"adamw"}, {"sgd"}, {"sgd", 0.9}, {"sgd", 0.9, true}};

}  // namespace

TEST_CASE("updates by elements are those of LibTorch's fused optimizers", "[kernels]") {
  const auto kind = GENERATE(from_range(kKinds));
  const auto options = options_of(kind.name, kind.momentum, kind.nesterov);
  auto theirs = random_numbers(1003, 1).view({17, 59}).set_requires_grad(true);
  auto ours = theirs.detach().clone().set_requires_grad(true);
  const auto fused = make_optimizer(options, {ParameterGroup{{{"p", theirs}}, 0.5, 0.01}});
  const auto elements = make_optimizer(options, {ParameterGroup{{{"p", ours}}, 0.5, 0.01}});
  for (std::uint64_t step = 0; step < 20; ++step) {
    const auto gradient = random_numbers(1003, 10 + step).view({17, 59});
    theirs.mutable_grad() = gradient.clone();
    ours.mutable_grad() = gradient.clone();
    const double lr = 0.01 * static_cast<double>(step % 3 + 1);
    fused->step(lr);
    update_elements(*elements, lr, "early_update");
  }
  CHECK((theirs - ours).abs().max().item<double>() < 2e-6);
  const auto state = fused->state(), found = elements->state();
  REQUIRE(state.size() == found.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    INFO(state[i].first);
    CHECK((state[i].second - found[i].second).abs().max().item<double>() <= 2e-6);
  }
}

TEST_CASE("an update has the same bits on every processor, for any number of copies, past the caches or not",
          "[kernels]") {
  const auto kind = GENERATE(from_range(kKinds));
  const int ranks = GENERATE(1, 2, 3, 4);
  const std::int64_t numel = 16 * 333;
  const auto parameter = random_numbers(numel, 1), first = random_numbers(numel, 2, 0.1),
             second = random_numbers(numel, 3, 0.1).square();
  std::vector<at::Tensor> gradients;
  std::vector<const float*> inputs;
  std::vector<const void*> bytes;
  for (int r = 0; r < ranks; ++r) {
    gradients.push_back(random_numbers(numel, 4 + static_cast<std::uint64_t>(r)));
    inputs.push_back(gradients.back().const_data_ptr<float>());
    bytes.push_back(inputs.back());
  }
  const auto optimizer =
      make_optimizer(options_of(kind.name, kind.momentum, kind.nesterov), {ParameterGroup{{{"p", parameter}}}});
  std::string why_not;
  UpdateTask task;
  task.rule = optimizer->elements(why_not).at(0).rule(0.01, 3);
  task.gradients = inputs.data();
  task.gradient_count = task.divisor = ranks;
  task.parameter = parameter.const_data_ptr<float>();
  task.first = first.const_data_ptr<float>();
  task.second = second.const_data_ptr<float>();
  task.parameter_copies = task.moment_copies = ranks;
  task.numel = numel;
  struct Made {
    std::vector<at::Tensor> parameter, first, second;
  };
  const auto make = [&](void (*run)(const UpdateTask&), UpdateTask how) {
    Made made;
    std::vector<float*> to[3];
    for (int r = 0; r < ranks; ++r) {
      int which = 0;
      for (auto* tensors : {&made.parameter, &made.first, &made.second}) {
        tensors->push_back(at::zeros({numel}));
        to[which++].push_back(tensors->back().mutable_data_ptr<float>());
      }
    }
    how.next_parameter = to[0].data();
    how.next_first = to[1].data();
    how.next_second = to[2].data();
    run(how);
    return made;
  };
  const auto reference = make(kernels_generic::update, task);
  CHECK_FALSE(equal_bits(reference.parameter[0], parameter));
  // Gradients that were reduced before make the same.
  const auto mean = at::zeros({numel});
  void* outputs[] = {mean.mutable_data_ptr()};
  reduce(ReduceTask{Element::f32, Reduction::sum, ranks, bytes.data(), ranks, outputs, 1, numel});
  const float* reduced[] = {mean.const_data_ptr<float>()};
  auto of_reduced = task;
  of_reduced.gradients = reduced;
  of_reduced.gradient_count = of_reduced.divisor = 1;
  auto streamed = task;
  streamed.streaming = true;
  auto moments_once = task;
  moments_once.moment_copies = 1;
  for (const auto& how : {task, of_reduced, streamed, moments_once}) {
    const auto made = make(troupe::update, how);
    const auto nothing = at::zeros({numel});
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
      const bool has_moments = r < static_cast<std::size_t>(how.moment_copies);
      CHECK(equal_bits(made.parameter[r], reference.parameter[0]));
      CHECK(equal_bits(made.first[r], has_moments ? reference.first[0] : nothing));
      CHECK(equal_bits(made.second[r], has_moments ? reference.second[0] : nothing));
    }
  }
}

TEST_CASE("an optimizer whose parameters are not f32 says which, and has no elements", "[kernels]") {
  const auto wide = at::zeros({4}, at::kDouble);
  const auto optimizer = make_optimizer(options_of("adamw", 0, false), {ParameterGroup{{{"layer.weight", wide}}}});
  CHECK_THROWS_WITH(update_elements(*optimizer, 0.1, "early_update"),
                    Catch::Contains("early_update") && Catch::Contains("layer.weight is Double"));
}
