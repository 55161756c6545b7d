// Uses an image classifier that examples/image_classifier has trained: no ranks and no training.
//
//   build/release/examples/inference/inference runs/latest/checkpoints runs/latest/config.toml
//
// expect: how many tensors were loaded, and the share of the held-out images that are named right: the held-out
// accuracy of that checkpoint.
#include <cstdio>
#include <numeric>

#include "examples/image_classifier/mini_resnet.hpp"

double accuracy_of(MiniResNet& model, const troupe::Dataset& data) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(data.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto batch = data.get_batch(all, {});
  return model(batch.input).argmax(1).eq(batch.target).to(torch::kDouble).mean().item<double>();
}

int main(int argc, char** argv) try {
  if (argc != 3) return std::fputs("usage: inference CHECKPOINT CONFIG.toml\n", stderr), 2;
  troupe::Config config;
  troupe::read_config_file(config, argv[2]);
  MiniResNet model(config.in_channels, config.num_classes);
  std::puts(troupe::load_weights(model, argv[1]).c_str());
  model->eval();
  torch::NoGradGuard no_grad;
  const auto held_out = troupe::make_datasets(config, config.seed).second;
  std::printf("accuracy %.2f%% of %lld\n", 100 * accuracy_of(model, *held_out),
              static_cast<long long>(held_out->size()));
  return 0;
} catch (const troupe::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return troupe::exit_code(error.code());
}
