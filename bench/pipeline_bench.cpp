// The bubble of a pipeline's schedules beside their formulas: bench_pipeline [STEPS]
//
// Four simulated ranks with a block each (two for interleaved), every one of which waits as long: in forward, in the
// backward of its input, in that of its weights. A step's bubble is the share of the ranks' time, from the first one's
// begin to the last one's end, in which none of their blocks waits. One JSON line for each schedule: the median of the
// steps, the least and the most, the formula, and their ratio.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <nlohmann/json.hpp>

#include "launch/loop/rank_system.hpp"
#include "launch/network/actor_system.hpp"
#include "launch/program/simulate.hpp"
#include "strategies/mesh/mesh_parallel.hpp"
#include "tensor_io/base/steady_time.hpp"
#include "tensor_io/data/datasets.hpp"
#include "tensor_io/layers/deferred_weights.hpp"
#include "troupe/troupe.hpp"

namespace bench_pipeline {

using namespace troupe;

namespace {

constexpr int kRanks = 4, kMicroBatches = 8;
constexpr std::chrono::microseconds kPart{
    40'000};  // of a rank's forward; its backward takes as long for inputs, and for weights

void wait_for(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }

/// y = w x, where each of the three computations takes `part`.
struct WaitingProduct : torch::autograd::Function<WaitingProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            std::int64_t part) {
    context->save_for_backward({x});
    context->saved_data["weight"] = weight;
    context->saved_data["part"] = part;
    wait_for(std::chrono::microseconds(part));
    return x * weight;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto x = context->get_saved_variables()[0], weight = context->saved_data["weight"].toTensor();
    const std::chrono::microseconds part(context->saved_data["part"].toInt());
    const auto& gradient = gradients[0];
    wait_for(part);
    const auto of_weight = [x, part, gradient] {
      wait_for(part);
      return (gradient * x).sum();
    };
    if (auto* later = DeferredWeights::current()) {
      later->add(weight, of_weight);
      return {gradient * weight.detach(), at::Tensor(), at::Tensor()};
    }
    return {gradient * weight.detach(), of_weight(), at::Tensor()};
  }
};

struct WaiterImpl : torch::nn::Module {
  explicit WaiterImpl(std::chrono::microseconds each) : part(each) {
    weight = register_parameter("weight", torch::ones({}));
  }
  at::Tensor forward(const at::Tensor& x) { return WaitingProduct::apply(x, weight, part.count()); }
  at::Tensor weight;
  std::chrono::microseconds part;
};
TROUPE_BLOCK(Waiter);

struct Step {
  std::int64_t begin = 0, end = 0;
};

std::vector<double> bubbles(const std::string& schedule, int chunks, int steps) {
  std::mutex mutex;
  std::vector<std::vector<Step>> times(kRanks);
  SimulationOptions simulation;
  simulation.world_size = kRanks;
  simulation.rank.job_id = "bench";
  Config config;
  config.ranks = kRanks;
  config.strategy = "pipeline";
  config.pipeline_schedule = schedule;
  config.pipeline_chunks = chunks;
  config.grad_accum_steps = config.batch_size = kMicroBatches;
  config.lr = 1e-6;
  config.max_steps = steps + 1;  // the first one is no measurement: communicators and pages are new
  config.epochs = steps + 1;
  simulation.rank.training = static_cast<const TrainingOptions&>(config);
  simulation.rank.strategy = static_cast<const StrategyOptions&>(config);
  simulation.rank.communicator = static_cast<const CommunicatorSettings&>(config);
  const auto data =
      std::make_shared<TensorDataset>(torch::ones({kMicroBatches, 1}), torch::zeros({kMicroBatches}, at::kLong));
  ActorSystemConfig system_config(false);
  caf::actor_system system(system_config);
  const int code = simulate(system, simulation, [&](const RankSystemOptions& options) {
    Rank rank(system, config, options);
    auto model = rank.distribute([&] {
      torch::nn::Sequential chain;
      for (int b = 0; b < kRanks * chunks; ++b) chain->push_back(Waiter(kPart / chunks));
      return chain;
    });
    const auto optimizer = rank.make_optimizer(*model);
    std::vector<std::shared_ptr<const Batch>> of_step;
    auto stream = rank.loader(data);
    while (const auto batch = stream.next()) {
      of_step.push_back(batch);
      if (!batch->last_of_step) continue;
      rank.barrier();
      Step step{steady_now_ns(), 0};
      rank.run_micro_batches(of_step, [&](const Batch& of) { return Loss(model->forward(of.input).mean()); });
      step.end = steady_now_ns();
      of_step.clear();
      rank.step(*optimizer);
      std::lock_guard lock(mutex);
      times[static_cast<std::size_t>(options.process.slot)].push_back(step);
    }
    system_of(rank).finish({ErrorCode::ok, options.process.slot, {}, -1, {}, {}, {}});
    return 0;
  });
  if (code != 0) std::exit(code);
  std::vector<double> shares;
  const double busy = 1e3 * 3 * kMicroBatches * static_cast<double>(kPart.count());  // ns of a rank
  for (std::size_t s = 1; s < times[0].size(); ++s) {
    auto begin = times[0][s].begin, end = times[0][s].end;
    for (const auto& of_rank : times) begin = std::min(begin, of_rank[s].begin), end = std::max(end, of_rank[s].end);
    shares.push_back(1 - busy / static_cast<double>(end - begin));
  }
  std::sort(shares.begin(), shares.end());
  return shares;
}

}  // namespace

int run(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 5;
  if (steps < 1) return std::fprintf(stderr, "usage: bench_pipeline [STEPS], at least 1\n"), 2;
  register_mesh_parallel();
  for (const auto& [schedule, chunks] :
       std::vector<std::pair<std::string, int>>{{"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}, {"zero_bubble", 1}}) {
    const auto shares = bubbles(schedule, chunks, steps);
    const PipelineShape shape{kRanks, kMicroBatches, chunks};
    const double formula = bubble_formula(schedule, shape), median = shares[shares.size() / 2];
    const nlohmann::json line{{"schedule", schedule},  {"ranks", kRanks},    {"micro_batches", kMicroBatches},
                              {"chunks", chunks},      {"bubble", median},   {"least", shares.front()},
                              {"most", shares.back()}, {"formula", formula}, {"ratio", median / formula}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace bench_pipeline
