// A masked language model: sentences of unequal lengths, padded, in named tensors; a mean over the masked words of all
// ranks. masked_language_model.py does the same with PyTorch.
//
//   build/release/launch/troupe launch --nproc 2 build/release/examples/recipes/masked_language_model
//
// expect: a held-out loss that falls from 3.5 to below 0.1.
#include <troupe/troupe.hpp>

namespace nn = torch::nn;
constexpr std::int64_t kWords = 29, kMask = kWords, kLongest = 12;

// A sentence counts in steps of 1 to 4, modulo 29, so that a word follows from its neighbors. Every fourth is masked.
class Sentences : public troupe::Dataset {
 public:
  Sentences(std::int64_t first, std::int64_t size) : first_(first), size_(size) {}
  std::int64_t size() const override { return size_; }
  troupe::Example get(std::int64_t index, const troupe::SampleContext&) const override {
    const auto i = first_ + index, length = 5 + i * 7 % (kLongest - 4);
    const auto place = torch::arange(length);
    const auto words = (i * 13 + place * (1 + i % 4)) % kWords, masked = ((place + i) % 4).eq(0);
    return {.named = {{"words", words.masked_fill(masked, kMask)}, {"labels", words.masked_fill(~masked, -100)}}};
  }
  troupe::Batch collate(const std::vector<troupe::Example>& examples) const override {
    return troupe::pad_to_longest(examples, {.values = {{"labels", -100}}}, name());  // adds attention_mask
  }

 private:
  std::int64_t first_, size_;
};

struct EncoderImpl : nn::Module {
  at::Tensor forward(const at::Tensor& words, const at::Tensor& is_word) {
    const auto states = word(words) + place(torch::arange(words.size(1)));
    return scores(layer->forward(states.transpose(0, 1), {}, ~is_word).transpose(0, 1));  // (batch, longest, kWords)
  }
  nn::Embedding word = register_module("word", nn::Embedding(kWords + 1, 32));
  nn::Embedding place = register_module("place", nn::Embedding(kLongest, 32));
  nn::TransformerEncoderLayer layer = register_module(
      "layer", nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(64).dropout(0)));
  nn::Linear scores = register_module("scores", nn::Linear(32, kWords));
};
TORCH_MODULE(Encoder);

troupe::Loss loss(Encoder& model, const troupe::Batch& batch, troupe::Rank& rank) {
  const auto labels = batch["labels"].flatten();
  const auto scores = model(batch["words"], batch["attention_mask"]).flatten(0, 1);
  const auto masked = labels.ne(-100).sum().item<std::int64_t>();
  const auto right = scores.argmax(1).eq(labels).sum().item<double>();
  if (masked > 0) rank.log("masked/right", right / static_cast<double>(masked));  // weighted by the count below
  const auto options = nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum);
  return troupe::Loss::sum(nn::functional::cross_entropy(scores, labels, options), masked);
}

void declare(troupe::Config& config) {  // what the settings are if nothing is said
  config.optimizer = "adamw";
  config.lr = 0.003;
}

int main(int argc, char** argv) {
  const troupe::Datasets data{std::make_shared<Sentences>(0, 4096), std::make_shared<Sentences>(4096, 512)};
  return troupe::run<Encoder>(argc, argv, {.data = data, .loss = loss, .declare = declare});
}
