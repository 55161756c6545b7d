// A training program with a strategy of its own (gossip.hpp).
//
//   ./dev build && build/release/launch/troupe launch --nproc 2 build/release/examples/custom_strategy/custom_strategy
//   --strategy gossip
//
// expect: "model: gossip; 2 ranks", a line per log interval with a falling loss, and a held-out accuracy above 0.85 at
// the end.
#include "gossip.hpp"

namespace {

namespace nn = torch::nn;

// Which of two half moons a point lies on.
class Moons : public troupe::Dataset {
 public:
  explicit Moons(std::int64_t first) : first_(first) {}
  std::int64_t size() const override { return 4000; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const auto i = first_ + index;
    const double turn = M_PI * static_cast<double>(i * 7919 % 10007) / 10007,
                 off = static_cast<double>(i * 104729 % 997) / 5000;
    const auto moon = i % 2;
    const double x = moon == 0 ? std::cos(turn) : 1 - std::cos(turn),
                 y = moon == 0 ? std::sin(turn) : 0.5 - std::sin(turn);
    return {torch::tensor({x + off, y + off}, torch::kFloat), torch::tensor(moon)};
  }

 private:
  std::int64_t first_;
};

nn::Sequential model() {
  return nn::Sequential(nn::Linear(2, 32), nn::Tanh(), nn::Linear(32, 32), nn::Tanh(), nn::Linear(32, 2));
}

troupe::Loss loss(nn::Sequential& net, const troupe::Batch& batch) {
  const auto scores = net->forward(batch.input);
  const auto correct = scores.argmax(1).eq(batch.target).sum();
  return {nn::functional::cross_entropy(scores, batch.target), correct};
}

}  // namespace

int main(int argc, char** argv) {
  register_gossip();
  const troupe::Datasets data{std::make_shared<Moons>(0), std::make_shared<Moons>(4000)};
  return troupe::run<nn::Sequential>(argc, argv, {.model = model, .data = data, .loss = loss});
}
