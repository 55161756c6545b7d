// Validates and saves an exponential moving average of the weights, and stops when it no longer gets better.
// average_weights.py does the same with PyTorch.
//
//   build/release/launch/troupe launch --nproc 2 build/release/examples/recipes/average_weights
//
// expect: a held-out accuracy after each epoch, and the end of the run five epochs after its best.
#include <troupe/troupe.hpp>

// Is a point outside of a sphere? One training label in four is wrong, so that training too long does harm.
class Points : public troupe::Dataset {
 public:
  Points(std::int64_t first, std::int64_t size, bool noisy) : first_(first), size_(size), noisy_(noisy) {}
  std::int64_t size() const override { return size_; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const auto drawn = torch::sin(torch::arange(8, torch::kDouble) + 8 * (first_ + index)) * 10000;
    const auto point = (2 * (drawn - drawn.floor()) - 1).to(torch::kFloat);
    const bool outside = point.square().sum().item<double>() > 8.0 / 3;
    return {point, torch::tensor(std::int64_t{outside != (noisy_ && index % 4 == 0)})};
  }

 private:
  std::int64_t first_, size_;
  bool noisy_;
};

// In training the net, in validation its average. Both are in the checkpoints.
struct AveragedImpl : torch::nn::Module {
  AveragedImpl() {
    for (const auto& average_of : average->parameters()) average_of.requires_grad_(false);
    update(0);
  }
  static torch::nn::Sequential make() {
    return torch::nn::Sequential(torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 2));
  }
  void update(double decay) {
    const torch::NoGradGuard no_grad;
    const auto averages = average->parameters(), weights = net->parameters();
    for (std::size_t i = 0; i < weights.size(); ++i) averages[i].lerp_(weights[i], 1 - decay);
  }
  at::Tensor forward(const at::Tensor& points) { return (is_training() ? net : average)->forward(points); }

  torch::nn::Sequential net = register_module("net", make()), average = register_module("average", make());
};
TORCH_MODULE(Averaged);

troupe::Loss loss(Averaged& model, const troupe::Batch& batch) {
  const auto scores = model(batch.input);
  return {torch::nn::functional::cross_entropy(scores, batch.target), scores.argmax(1).eq(batch.target).sum()};
}

troupe::Callbacks average_and_stop(troupe::Rank& rank, Averaged& model) {
  // With the checkpoints, so that a resumed run counts on.
  auto best = std::make_shared<double>(0), epochs_since = std::make_shared<double>(0);
  rank.state("best", *best);
  rank.state("epochs_since", *epochs_since);
  return {.on_update = [model](std::int64_t) mutable { model->update(0.99); },
          .on_validation =
              [best, epochs_since](const troupe::ValidationReport& report) {
                *epochs_since = report.accuracy > *best ? 0 : *epochs_since + 1;
                *best = std::max(*best, report.accuracy);
              },
          .should_stop = [epochs_since] { return *epochs_since == 5; }};
}

void declare(troupe::Config& config) {  // what the settings are if nothing is said
  config.optimizer = "adamw";
  config.lr = 0.01;
  config.epochs = 50;
}

int main(int argc, char** argv) {
  const troupe::Datasets data{std::make_shared<Points>(0, 512, true), std::make_shared<Points>(512, 512, false)};
  return troupe::run<Averaged>(argc, argv,
                               {.data = data, .loss = loss, .callbacks = average_and_stop, .declare = declare});
}
