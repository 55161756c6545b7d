// A model of two inputs, a user and an item, and a target of which the loss is a regression's. two_inputs.py does the
// same with PyTorch.
//
//   build/release/launch/troupe launch --nproc 2 build/release/examples/recipes/two_inputs
//
// expect: a held-out loss below 0.01, and `validation_metrics/error/largest` in metrics.jsonl and TensorBoard.
#include <troupe/troupe.hpp>

#include <cmath>

constexpr std::int64_t kUsers = 64;

// How much a user likes an item, which four numbers describe.
class Ratings : public troupe::Dataset {
 public:
  Ratings(std::int64_t first, std::int64_t size) : first_(first), size_(size) {}
  std::int64_t size() const override { return size_; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const auto i = first_ + index, user = i * 37 % kUsers;
    const auto item = torch::sin(torch::arange(1, 5) * static_cast<double>(i));
    const auto taste = torch::cos(torch::arange(1, 5) * static_cast<double>(user));
    return {.named = {{"user", torch::tensor(user)}, {"item", item}, {"rating", (taste * item).mean()}}};
  }

 private:
  std::int64_t first_, size_;
};

struct TwoTowersImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& user, const at::Tensor& item) {
    return (user_tower(user) * item_tower->forward(item)).sum(1);
  }
  torch::nn::Embedding user_tower = register_module("user_tower", torch::nn::Embedding(kUsers, 16));
  torch::nn::Sequential item_tower = register_module(
      "item_tower", torch::nn::Sequential(torch::nn::Linear(4, 32), torch::nn::Tanh(), torch::nn::Linear(32, 16)));
};
TORCH_MODULE(TwoTowers);

troupe::Loss loss(TwoTowers& model, const troupe::Batch& batch, troupe::Rank& rank) {
  const auto error = model(batch["user"], batch["item"]) - batch["rating"];
  rank.log("error/largest", error.detach().abs().max(), troupe::Reduce::max);
  return error.square().mean();
}

void declare(troupe::Config& config) {  // what the settings are if nothing is said
  config.optimizer = "adamw";
  config.lr = 0.01;
  config.no_decay = "biases,*user_tower.weight";
}

int main(int argc, char** argv) {
  const troupe::Datasets data{std::make_shared<Ratings>(0, 8192), std::make_shared<Ratings>(8192, 1024)};
  return troupe::run<TwoTowers>(argc, argv, {.data = data, .loss = loss, .declare = declare});
}
