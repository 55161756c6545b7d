#pragma once
// The job of train.cpp, which its tests train, too: a regression, with a setting of its own (--hidden).
#include <troupe/troupe.hpp>

#include <cmath>

// y = sin(3 x), sampled evenly.
class Wave : public troupe::Dataset {
 public:
  Wave(double offset, std::int64_t size) : offset_(offset), size_(size) {}
  std::int64_t size() const override { return size_; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const double x = 2 * (static_cast<double>(index) + offset_) / static_cast<double>(size()) - 1;
    return {torch::tensor({x}, torch::kFloat), torch::tensor({std::sin(3 * x)}, torch::kFloat)};
  }

 private:
  double offset_;
  std::int64_t size_;
};

inline torch::nn::Sequential model(const troupe::Config& config) {
  const auto hidden = config.get<std::int64_t>("hidden");
  return torch::nn::Sequential(torch::nn::Linear(1, hidden), torch::nn::Tanh(), torch::nn::Linear(hidden, 1));
}

inline troupe::Loss loss(torch::nn::Sequential& net, const troupe::Batch& batch) {
  return torch::mse_loss(net->forward(batch.input), batch.target);
}

inline void declare(troupe::Config& config) {
  config.lr = 0.05;
  config.declare("hidden", std::int64_t{16}, "width of the hidden layer");
}

inline troupe::JobOf<torch::nn::Sequential> job(std::int64_t samples = 2048) {
  const troupe::Datasets data{std::make_shared<Wave>(0, samples), std::make_shared<Wave>(0.5, samples)};
  return {.model = model, .data = data, .loss = loss, .declare = declare};
}
