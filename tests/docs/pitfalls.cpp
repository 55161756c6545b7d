// Does on purpose what docs/troubleshooting.md warns of, so that the page can hold what is really printed: `pitfalls
// --pitfall NAME`. pitfalls.py compares.
#include <troupe/troupe.hpp>

#include <cstdio>
#include <limits>

namespace {

struct SmallImpl : torch::nn::Module {
  torch::nn::Linear used = register_module("used", torch::nn::Linear(4, 2));
  torch::nn::Linear unused = register_module("unused", torch::nn::Linear(4, 2));
  at::Tensor forward(const at::Tensor& x) { return used(x); }
};
TORCH_MODULE(Small);

struct NormImpl : torch::nn::Module {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(4, 4));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(4));
  at::Tensor forward(const at::Tensor& x) { return norm(in(x)); }
};
TORCH_MODULE(Norm);

struct Noise : troupe::Dataset {
  explicit Noise(std::int64_t samples) : samples_(samples) {}
  std::int64_t size() const override { return samples_; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    return {torch::full({4}, static_cast<double>(index % 7) / 7), torch::tensor(index % 2)};
  }
  std::int64_t samples_;
};

at::Tensor loss(const at::Tensor& scores, const troupe::Batch& batch) {
  return torch::nn::functional::cross_entropy(scores, batch.target);
}

void train(troupe::Rank& rank) {
  const auto pitfall = rank.config().get<std::string>("pitfall");
  const bool odd = rank.rank() == 1;
  if (pitfall == "batch_norm") {
    rank.distribute([] { return Norm(); });
    return;
  }
  Small model;
  if (pitfall == "frozen_on_one_rank" && odd) model->used->bias.set_requires_grad(false);
  if (pitfall == "backward_first") rank.backward(torch::ones({}, torch::requires_grad()).sum());
  rank.distribute(model);
  if (pitfall == "twice") rank.distribute(model);
  auto optimizer = rank.make_optimizer(*model);
  std::int64_t steps = 0;
  for (const auto& batch : rank.loader(std::make_shared<Noise>(pitfall == "other_data" && odd ? 48 : 64))) {
    if (pitfall == "left_early" && odd && steps == 2) return;
    if (pitfall == "own_collective_on_one_rank" && odd) rank.barrier();
    auto value = loss(model->forward(batch.input), batch);
    if (pitfall == "not_finite" && odd && steps == 1) value = value * std::numeric_limits<double>::quiet_NaN();
    rank.backward(value);
    if (pitfall == "step_each_micro_batch" || batch.last_of_step) rank.step(*optimizer);
    if (++steps == 3) break;
  }
  if (pitfall == "unused" && rank.is_main())
    std::printf("unused.weight's gradient is %s\n", model->unused->weight.grad().defined() ? "defined" : "undefined");
}

}  // namespace

int main(int argc, char** argv) {
  return troupe::main(argc, argv, train, [](troupe::Config& config) {
    config.batch_size = 16;
    config.ranks = 2;
    config.run_dir = "";
    config.declare("pitfall", std::string(), "what to do wrong");
  });
}
