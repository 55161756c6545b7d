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

int main(int argc, char** argv) {
  troupe::Job job;
  job.declare = [](troupe::Config& config) {
    config.lr = 0.05;
    config.declare("hidden", std::int64_t{16}, "width of the hidden layer");
  };
  job.model = [](const troupe::Config& config) {
    namespace nn = torch::nn;
    const auto hidden = config.get<std::int64_t>("hidden");
    return nn::Sequential(nn::Linear(1, hidden), nn::Tanh(), nn::Linear(hidden, 1)).ptr();
  };
  job.data = [](const troupe::Config&) {
    return troupe::Datasets{std::make_shared<Wave>(0), std::make_shared<Wave>(0.5)};
  };
  job.loss = [](torch::nn::Module& model, const troupe::Batch& batch, const troupe::Config&) {
    return troupe::Loss(torch::mse_loss(model.as<torch::nn::SequentialImpl>()->forward(batch.input), batch.target));
  };
  return troupe::run(job, argc, argv);
}
