// A training program of a project of one's own: a regression, with a setting of its own (--hidden).
//
//   troupe launch --nproc 2 build/train --epochs 4 --hidden 32
//
// expect: a line every ten steps, and a held-out loss below 0.05.
#include <troupe/troupe.hpp>

#include <cmath>

// y = sin(3 x), sampled evenly.
class Wave : public troupe::Dataset {
 public:
  explicit Wave(double offset) : offset_(offset) {}
  std::int64_t size() const override { return 2048; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const double x = 2 * (static_cast<double>(index) + offset_) / static_cast<double>(size()) - 1;
    return {torch::tensor({x}, torch::kFloat), torch::tensor({std::sin(3 * x)}, torch::kFloat)};
  }

 private:
  double offset_;
};

namespace nn = torch::nn;

nn::Sequential model(const troupe::Config& config) {
  const auto hidden = config.get<std::int64_t>("hidden");
  return nn::Sequential(nn::Linear(1, hidden), nn::Tanh(), nn::Linear(hidden, 1));
}

troupe::Loss loss(nn::Sequential& net, const troupe::Batch& batch) {
  return torch::mse_loss(net->forward(batch.input), batch.target);
}

void declare(troupe::Config& config) {
  config.lr = 0.05;
  config.declare("hidden", std::int64_t{16}, "width of the hidden layer");
}

int main(int argc, char** argv) {
  const troupe::Datasets data{std::make_shared<Wave>(0), std::make_shared<Wave>(0.5)};
  return troupe::run<nn::Sequential>(argc, argv, {.model = model, .data = data, .loss = loss, .declare = declare});
}
