// Learns to read handwritten digits. README.md says how to build and start it; every setting is a flag (--help) or a
// line of train.toml.
#include <troupe/troupe.hpp>

// The model. TROUPE_BLOCK instead of TORCH_MODULE makes a part that --strategy fsdp can shard and gather by itself.
struct LayerImpl : torch::nn::Module {
  LayerImpl(std::int64_t in, std::int64_t out) : linear(register_module("linear", torch::nn::Linear(in, out))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::relu(linear(x)); }
  torch::nn::Linear linear;
};
TROUPE_BLOCK(Layer);

struct NetImpl : torch::nn::Module {
  NetImpl(std::int64_t pixels, std::int64_t hidden, std::int64_t classes)
      : first(register_module("first", Layer(pixels, hidden))),
        second(register_module("second", Layer(hidden, hidden))),
        last(register_module("last", torch::nn::Linear(hidden, classes))) {}
  at::Tensor forward(const at::Tensor& images) { return last(second(first(images.flatten(1)))); }
  Layer first, second;
  torch::nn::Linear last;
};
TORCH_MODULE(Net);

Net model(const troupe::Config& config) {
  const auto pixels = config.in_channels * config.image_size * config.image_size;
  return Net(pixels, config.get<std::int64_t>("hidden"), config.num_classes);
}

// What to train on, and what to measure on. `--data image_folder --data_dir PICTURES` and others work at once; a data
// set of your own is a class with size() and get(i), derived from troupe::Dataset.
troupe::Datasets data(const troupe::Config& config) {
  auto [train, held_out] = troupe::make_datasets(config, config.seed);
  return {train, held_out};
}

// The mean loss of a batch, and how many of it were right.
troupe::Loss loss(Net& net, const troupe::Batch& batch) {
  const auto scores = net(batch.input);
  const auto correct = scores.argmax(1).eq(batch.target).sum();
  return {torch::nn::functional::cross_entropy(scores, batch.target), correct};
}

// Settings of your own, beside Troupe's: --hidden 256, or `hidden = 256` under [program] in train.toml.
void declare(troupe::Config& config) { config.declare("hidden", std::int64_t{128}, "width of the inner layers"); }

// Other parts, in this order: .model, .data, .loss, .optimizer, .callbacks, .groups, .schedule, .declare.
int main(int argc, char** argv) {
  return troupe::run<Net>(argc, argv, {.model = model, .data = data, .loss = loss, .declare = declare});
}
