// Fine-tunes a model from a safetensors file with low-rank adapters (Hu et al., "LoRA", arXiv 2106.09685): the file's
// weights stay as they are. low_rank_adapters.py does the same with PyTorch.
//
//   program=build/release/examples/recipes/low_rank_adapters
//   $program --adapter_rank 0 --checkpoint_dir runs/base
//   build/release/launch/troupe checkpoint convert runs/base base.safetensors
//   build/release/launch/troupe launch --nproc 2 $program --shift 0.5 --init_from base.safetensors
//
// expect: a held-out loss below 0.001 in both runs; the second trains 392 of 4,609 parameters.
#include <troupe/troupe.hpp>

#include <cmath>

// y = sin(3 x + shift), sampled evenly.
class Wave : public troupe::Dataset {
 public:
  Wave(double offset, double shift) : offset_(offset), shift_(shift) {}
  std::int64_t size() const override { return 2048; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const double x = 2 * (static_cast<double>(index) + offset_) / 2048 - 1;
    return {torch::tensor({x}, torch::kFloat), torch::tensor({std::sin(3 * x + shift_)}, torch::kFloat)};
  }

 private:
  double offset_, shift_;
};

// A linear layer whose weight gets the product of two narrow matrices added; of rank 0 it is an ordinary one.
struct AdaptedLinearImpl : torch::nn::LinearImpl {
  AdaptedLinearImpl(std::int64_t in, std::int64_t out, std::int64_t rank) : LinearImpl(in, out) {
    if (rank == 0) return;
    weight.requires_grad_(false);
    bias.requires_grad_(false);
    down = register_parameter("down", torch::randn({rank, in}) / std::sqrt(static_cast<double>(in)));
    up = register_parameter("up", torch::zeros({out, rank}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = LinearImpl::forward(x);
    return down.defined() ? y + torch::linear(torch::linear(x, down), up) : y;
  }
  at::Tensor down, up;
};
TORCH_MODULE(AdaptedLinear);

torch::nn::Sequential model(const troupe::Config& config) {
  const auto rank = config.get<std::int64_t>("adapter_rank");
  return torch::nn::Sequential(AdaptedLinear(1, 64, rank), torch::nn::Tanh(), AdaptedLinear(64, 64, rank),
                               torch::nn::Tanh(), AdaptedLinear(64, 1, rank));
}

troupe::Datasets data(const troupe::Config& config) {
  const auto shift = config.get<double>("shift");
  return {std::make_shared<Wave>(0, shift), std::make_shared<Wave>(0.5, shift)};
}

troupe::Loss loss(torch::nn::Sequential& net, const troupe::Batch& batch) {
  return torch::mse_loss(net->forward(batch.input), batch.target);
}

void declare(troupe::Config& config) {
  config.optimizer = "adamw";
  config.lr = 0.005;
  config.init_allow_missing = true;  // the file has no adapters
  config.declare("adapter_rank", std::int64_t{2}, "rank of the adapters; 0: none, all weights are trained");
  config.declare("shift", 0.0, "of the wave to learn");
}

int main(int argc, char** argv) {
  return troupe::run<torch::nn::Sequential>(argc, argv,
                                            {.model = model, .data = data, .loss = loss, .declare = declare});
}
