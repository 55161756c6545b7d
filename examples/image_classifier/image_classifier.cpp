// An image classifier: MiniResNet on handwritten digits, CIFAR-10, MNIST, pictures in folders or tar shards, or
// synthetic images.
//
//   ./dev demo
//   build/release/launch/troupe launch --nproc 2 build/release/examples/image_classifier/image_classifier --data
//   cifar10 --data_dir
//   ~/cifar-10-batches-bin
//   … --data image_folder --data_dir PICTURES --image_size 64 --num_classes 5        (or webdataset: docs/data.md)
//
// expect: a falling loss, a held-out accuracy after each epoch (digits: above 0.97 after a few), and the path of the
// last checkpoint.
#include "mini_resnet.hpp"

MiniResNet model(const troupe::Config& config) { return MiniResNet(config.in_channels, config.num_classes); }

troupe::Datasets data(const troupe::Config& config) {
  auto [train, held_out] = troupe::make_datasets(config, config.seed);
  return {train, held_out};
}

troupe::Loss loss(MiniResNet& net, const troupe::Batch& batch, const troupe::Config& config) {
  const auto scores = net(batch.input);
  const auto loss = torch::nn::functional::cross_entropy(
      scores, batch.target, torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(config.label_smoothing));
  return {loss, scores.argmax(1).eq(batch.target).sum()};
}

int main(int argc, char** argv) {
  return troupe::run<MiniResNet>(argc, argv, {.model = model, .data = data, .loss = loss});
}
