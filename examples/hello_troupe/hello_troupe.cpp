// The smallest training program: a network learns which of two spirals a point lies on.
//
//   ./dev build && build/release/launch/troupe launch --nproc 2 build/release/examples/hello_troupe/hello_troupe
//   --epochs 20
//
// expect: a line per log interval with a falling loss, and a held-out accuracy above 0.95 at the end.
#include <troupe/troupe.hpp>

#include <cmath>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(2, 64));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(64, 64));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(64, 2));
  at::Tensor forward(at::Tensor x) { return last(torch::relu(second(torch::relu(first(x))))); }
};
TORCH_MODULE(Net);

// A data set is a class with size() and get().
class Spirals : public troupe::Dataset {
 public:
  explicit Spirals(std::int64_t first) : first_(first) {}
  std::int64_t size() const override { return 4000; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const auto i = first_ + index;
    const double turn = 0.5 + 4.0 * static_cast<double>(i * 7919 % 10007) / 10007,
                 arm = static_cast<double>(i % 2) * M_PI;
    return {torch::tensor({turn * std::cos(turn + arm) / 4.5, turn * std::sin(turn + arm) / 4.5}, torch::kFloat),
            torch::tensor(i % 2)};
  }

 private:
  std::int64_t first_;
};

troupe::Loss loss(Net& net, const troupe::Batch& batch) {
  const auto scores = net(batch.input);
  const auto correct = scores.argmax(1).eq(batch.target).sum();
  return {torch::nn::functional::cross_entropy(scores, batch.target), correct};
}

int main(int argc, char** argv) {
  const troupe::Datasets data{std::make_shared<Spirals>(0), std::make_shared<Spirals>(4000)};
  return troupe::run<Net>(argc, argv, {.data = data, .loss = loss});
}
