// A small training program that makes one mistake on purpose, for `troupe debug`: planted --mistake NAME. Without a
// name it is sound. debug_test.py says where each is to be found.
#include <troupe/troupe.hpp>

#include "tests/support/fake_device.hpp"

namespace {

constexpr std::int64_t kFeatures = 16, kSamples = 256;

// Whether the sum of a sample's numbers is above 0.
struct Points : troupe::Dataset {
  Points(std::int64_t samples, bool device_target) : samples_(samples), device_target_(device_target) {}
  std::int64_t size() const override { return samples_; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(index));
    const auto input = torch::randn({kFeatures}, generator);
    return {input, (input.sum() > 0).to(at::kLong)};
  }
  troupe::Batch collate(const std::vector<troupe::Example>& examples) const override {
    auto batch = Dataset::collate(examples);
    if (device_target_) batch.target = batch.target.to(troupe::test::FakeDevice::device());
    return batch;
  }
  std::int64_t samples_;
  bool device_target_;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const std::string& with) : with_(with) {
    if (with == "batch_norm") norm = register_module("norm", torch::nn::BatchNorm1d(64));
    if (with == "unused") unused = register_module("unused", torch::nn::Linear(2, 2));
    if (with == "dropout_module") dropout = register_module("dropout", torch::nn::Dropout(0.5));
    if (with == "own_buffer") seen = register_buffer("seen", torch::zeros({kFeatures}));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto hidden = in(x);
    if (norm) hidden = norm(hidden);
    hidden = torch::relu(hidden);
    if (dropout) hidden = dropout(hidden);
    if (with_ == "own_dropout") hidden = torch::dropout(hidden, 0.5, is_training());
    if (seen.defined()) seen.add_(x.detach().mean(0));
    return out(hidden);
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kFeatures, 64));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(64, 2));
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear unused{nullptr};
  torch::nn::Dropout dropout{nullptr};
  at::Tensor seen;
  std::string with_;
};
TORCH_MODULE(Net);

// A sum over ranks in the place of their average.
struct SumHook : troupe::CommHook {
  void reduce(troupe::BucketView& bucket, troupe::Communicator& communicator) override {
    communicator.all_reduce(bucket.flat, troupe::ReduceOp::sum, bucket.label);
  }
};

troupe::Loss loss_of(Net& net, const troupe::Batch& batch, const std::string& mistake) {
  auto scores = net(batch.input);
  if (mistake == "half_loss") scores = scores.to(at::kHalf).to(at::kBFloat16);
  auto target = batch.target;
  namespace F = torch::nn::functional;
  if (mistake == "mean_of_means") target = target.masked_fill(batch.input.select(1, 0).gt(0), -100);
  const auto loss = F::cross_entropy(scores, target, F::CrossEntropyFuncOptions().ignore_index(-100));
  return mistake == "rising_loss" ? 2 * loss.detach() - loss : loss;  // the gradient has the wrong sign
}

// With batches of its own, on which each rank trains as they are.
void train_on_own(troupe::Rank& rank, Net& net, troupe::Optimizer& optimizer, const Points& data, bool show) {
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (int b = 0; b < 4; ++b) {
      std::vector<troupe::Example> examples;
      const int size = show ? 64 / rank.world_size() : 64, begin = 64 * b + (show ? size * rank.rank() : 0);
      for (int i = 0; i < size; ++i) examples.push_back(data.get(begin + i, {}));
      const auto batch = data.collate(examples);
      batches.emplace_back(batch.input, batch.target);
    }
  }
  const auto step = [&](const auto& batch) {
    rank.backward(torch::nn::functional::cross_entropy(net(batch.first), batch.second));
    rank.step(optimizer);
  };
  if (show) {
    for (const auto& batch : rank.uneven(batches)) step(batch);
  } else {
    for (const auto& batch : batches) step(batch);
  }
}

void train(troupe::Rank& rank) {
  const auto mistake = rank.config().get<std::string>("mistake");
  const bool odd = rank.rank() == 1;
  if (mistake == "backward_first") rank.backward(torch::ones({}, torch::requires_grad()).sum());
  if (mistake == "other_values") torch::manual_seed(100 + static_cast<std::uint64_t>(rank.rank()));
  Net net(mistake);
  if (mistake == "frozen_on_one_rank" && odd) net->out->bias.set_requires_grad(false);
  rank.distribute(net);
  auto optimizer = rank.make_optimizer(*net);
  const auto data =
      std::make_shared<Points>(mistake == "other_data" && odd ? kSamples - 64 : kSamples, mistake == "other_device");
  if (mistake == "same_samples" || mistake == "same_order")
    return train_on_own(rank, net, *optimizer, *data, mistake == "same_order");
  if (mistake != "not_kept") rank.keep_checkpoints(*optimizer);
  for (const auto& batch : rank.loader(data)) {
    const auto steps = rank.steps_done();
    if (mistake == "left_early" && odd && steps == 2) return;
    if (mistake == "own_collective" && odd && steps == 1) rank.barrier();
    auto loss = loss_of(net, batch, mistake);
    if (mistake == "not_finite" && odd && steps == 1) loss.value = loss.value / 0;
    rank.backward(loss);
    if (mistake == "step_each_micro_batch" || batch.last_of_step) rank.step(*optimizer);
  }
}

}  // namespace

int main(int argc, char** argv) {
  troupe::register_comm_hook("sum", [](const troupe::StrategyOptions&) { return std::make_shared<SumHook>(); });
  return troupe::main(argc, argv, train, [](troupe::Config& config) {
    config.batch_size = 64;
    config.epochs = 20;
    config.lr = 0.1;
    config.declare("mistake", std::string(), "what to do wrong");
  });
}
