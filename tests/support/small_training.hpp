#pragma once
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/strategy/saved_state.hpp"
#include "strategies/shipped_strategies.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/optimizer/fused_optimizer.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/tensors_reader.hpp"

namespace troupe::testing {

/// A small network without BatchNorm and dropout, whose sizes no number of ranks divides.
struct SmallMlpImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 33));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(33, 29));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(29, 3));
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(torch::tanh(second->forward(torch::tanh(first->forward(x)))));
  }
};

/// The same model on every rank: LibTorch's generator is one per process.
template <class Model, class... Arguments>
std::shared_ptr<Model> make_seeded(std::uint64_t seed, Arguments&&... arguments) {
  const auto building = seed_model(seed);
  return std::make_shared<Model>(std::forward<Arguments>(arguments)...);
}

/// The global batch of a step: the same samples whatever the number of ranks.
inline std::pair<at::Tensor, at::Tensor> small_batch(std::int64_t step, std::int64_t n = 16) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step) + 100);
  auto input = at::randn({n, 8}, generator);
  return {input, (input.sum(1) > 0).to(at::kLong) + (input.select(1, 0) > 1).to(at::kLong)};
}

inline std::vector<ParameterGroup> one_group(const torch::nn::Module& model) {
  ParameterGroup group;
  std::set<const c10::TensorImpl*> seen;  // a shared parameter counts once
  for (const auto& item : model.named_parameters()) {
    if (item.value().requires_grad() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      group.parameters.emplace_back(item.key(), item.value());
  }
  return {group};
}

inline std::string joined(const std::vector<std::string>& errors) {
  std::string text;
  for (const auto& error : errors) text += error;
  return text;
}

/// Whole tensors out of all ranks' parts, by name. Throws where an element is in two parts or in none.
inline NamedTensors assemble(const std::vector<TensorPart>& parts) {
  std::map<std::string, at::Tensor> whole, counts;
  for (const auto& part : parts) {
    if (!whole.contains(part.name)) {
      whole[part.name] = torch::zeros(part.global_shape, at::TensorOptions().dtype(part.dtype));
      counts[part.name] = torch::zeros(part.global_shape, at::kInt);
    }
    block_of(whole[part.name], part.offsets, part.shape).copy_(part.pieces.at(0));
    block_of(counts[part.name], part.offsets, part.shape).add_(1);
  }
  for (const auto& [name, count] : counts) {
    if (!count.eq(1).all().item<bool>()) throw std::runtime_error("the parts of " + name + " do not tile it");
  }
  return {whole.begin(), whole.end()};
}

/// What a strategy gets for a generation of the same ranks and communicators.
inline StrategyContext next_generation(Compute& compute) {
  StrategyContext context;
  context.rank = compute.rank();
  context.world_size = compute.world_size();
  context.options = compute.options().strategy;
  context.gradient_communicator = compute.services().gradient_communicator;
  context.program_communicator = compute.services().program_communicator;
  context.reducer = compute.services().reducer;
  context.progress = compute.services().progress;
  context.wait_reduced = [&compute](std::int64_t) {
    return compute.mailbox().receive<BucketsReduced>("reducer", "the step's buckets");
  };
  context.announce = [](const std::string&) {};
  return context;
}

/// Training of a few steps on N ranks, and what came of it.
struct SmallTraining {
  Cluster jobs;
  std::int64_t steps = 50;
  std::int64_t first_step = 0;
  double lr = 0.1;
  OptimizerOptions optimizer;
  std::function<std::shared_ptr<torch::nn::Module>()> model = [] { return make_seeded<SmallMlpImpl>(1); };
  std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)> forward = [](torch::nn::Module& model,
                                                                                const at::Tensor& input) {
    return dynamic_cast<SmallMlpImpl&>(model).forward(input);
  };
  std::function<std::unique_ptr<Optimizer>(torch::nn::Module&)> make = [this](torch::nn::Module& model) {
    return make_optimizer(optimizer, one_group(model));
  };
  std::function<void(RankSystem&, torch::nn::Module&, std::int64_t step)> before_step = [](auto&, auto&, auto) {};
  std::function<void(const StepReport&)> after_step = [](auto&) {};  ///< rank 0's
  std::function<std::int64_t(std::int64_t step)> batch_of = [](auto) { return std::int64_t{16}; };
  std::function<double(int rank, std::int64_t step)> weight_of = [](auto, auto) { return 1.0; };
  bool counts_correct = false;
  bool seeds = false;  ///< LibTorch's generator, before each forward
  std::function<void(RankSystem&, Optimizer&)> at_end = [](auto&, auto&) {};
  NamedTensors saved;  ///< loaded before the first step

  SmallTraining(const std::string& strategy, int world_size) {
    register_shipped_strategies();
    jobs.world_size = world_size;
    auto& options = jobs.options.strategy;
    options.strategy = strategy.substr(0, strategy.find(' '));
    if (options.strategy == "fsdp") options.fsdp_mode = strategy.substr(strategy.find(' ') + 1);
    options.bucket_cap_mb = options.first_bucket_mb = 1e-4;  // several units
  }
  SmallTraining(const SmallTraining&) = delete;

  struct Result {
    std::vector<double> losses;       // by step
    std::vector<double> norms;        // by step and rank
    NamedTensors state;               // whole, of rank 0
    std::vector<std::string> errors;  // by rank
    at::Tensor at(const std::string& name) const {
      for (const auto& [known, tensor] : state) {
        if (known == name) return tensor;
      }
      throw std::runtime_error("no " + name);
    }
  };

  Result run() {
    Result result;
    std::mutex mutex;
    std::vector<TensorPart> parts;
    result.errors = jobs.run([&](RankSystem& system) {
      auto& compute = system.compute();
      const auto mine = model();
      compute.distribute(mine);
      const auto made = make(*mine);
      if (!saved.empty()) {
        compute.strategy().saved_state().read_state(TensorsReader(saved), *made);
        compute.strategy().saved_state().publish_state();
        compute.resume_at(first_step);
      }
      const auto micro = system.options().training.grad_accum_steps;
      for (auto s = first_step; s < first_step + steps; ++s) {
        before_step(system, *mine, s);
        const auto [input, target] = small_batch(s, batch_of(s));
        const auto part = input.size(0) / micro / compute.world_size();
        for (std::int64_t m = 0; m < micro; ++m) {
          const auto begin = (m * compute.world_size() + compute.rank()) * part;
          const auto weight = weight_of(compute.rank(), s);
          const auto work = [&](const at::Tensor& x, const at::Tensor& y) {
            const auto output = forward(*mine, x);
            const auto there = y.to(output.device());
            return Loss(torch::nn::functional::cross_entropy(output.to(at::kFloat), there),
                        counts_correct ? CorrectSamples(output.argmax(1).eq(there).sum()) : CorrectSamples());
          };
          const auto x = input.narrow(0, begin, part), y = target.narrow(0, begin, part);
          if (compute.uses_graphs()) {
            const auto device = compute.program_communicator().device();
            compute.run_graphed({{x.to(device), y.to(device)},
                                 static_cast<double>(part),
                                 weight,
                                 {},
                                 [&](const std::vector<at::Tensor>& inputs) { return work(inputs[0], inputs[1]); }});
          } else {
            if (seeds) compute.seed_forward();
            compute.expect_rate(lr);
            compute.backward({work(x, y), static_cast<double>(part), weight});
          }
        }
        const auto report = compute.step(*made, lr);
        std::lock_guard lock(mutex);
        result.norms.push_back(report.gradient_norm);
        if (compute.rank() != 0) continue;
        result.losses.push_back(report.loss);
        after_step(report);
      }
      at_end(system, *made);
      auto mine_of_state = compute.strategy().saved_state().state_parts(*made, compute.rank(), compute.world_size());
      for (auto& part : mine_of_state) part.pieces.assign(1, values_of(part).clone());
      std::lock_guard lock(mutex);
      for (auto& part : mine_of_state) parts.push_back(std::move(part));
    });
    if (joined(result.errors).empty()) result.state = assemble(parts);
    return result;
  }
};

/// By name; huge where names or shapes differ.
inline double largest_difference(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return 1e9;
  const std::map<std::string, at::Tensor> others(b.begin(), b.end());
  double worst = 0;
  for (const auto& [name, tensor] : a) {
    const auto found = others.find(name);
    if (found == others.end() || found->second.sizes() != tensor.sizes()) return 1e9;
    if (tensor.numel() > 0)
      worst = std::max(worst, (tensor.to(at::kDouble) - found->second.to(at::kDouble)).abs().max().item<double>());
  }
  return worst;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return 1e9;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

/// Those of the model.
inline NamedTensors model_part(const NamedTensors& state) {
  NamedTensors part;
  for (const auto& entry : state) {
    if (entry.first.rfind("model.", 0) == 0) part.push_back(entry);
  }
  return part;
}

}  // namespace troupe::testing
