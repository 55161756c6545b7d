#pragma once
#include <troupe/troupe.hpp>

struct GptOptions {
  std::int64_t vocab_size = 256;
  std::int64_t block_size = 128;  ///< the most tokens that it looks back on
  std::int64_t n_layer = 4;
  std::int64_t n_head = 4;
  std::int64_t n_embd = 128;
  double dropout = 0;
  bool rotary = false;    ///< rotary positions (Su et al., "RoFormer", 2021) in place of learned ones
  bool tied_head = true;  ///< the output layer is the embedding, transposed (Press and Wolf, 2017)
};

/// Causal self-attention over LibTorch's scaled_dot_product_attention.
struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const GptOptions& options);
  /// x (B, T, C); rotation: cosines and sines (2, T, C / n_head / 2), or nothing.
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& rotation);

 private:
  std::int64_t n_head_;
  troupe::nn::Linear qkv_, out_;
  troupe::nn::Dropout dropout_;
};
TROUPE_BLOCK(Attention);

/// A pre-norm transformer layer (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019).
struct TransformerBlockImpl : torch::nn::Module {
  explicit TransformerBlockImpl(const GptOptions& options);
  at::Tensor forward(at::Tensor x, const std::optional<at::Tensor>& rotation);

 private:
  torch::nn::LayerNorm attention_norm_, mlp_norm_;
  Attention attention_;
  troupe::nn::Linear up_, down_;
  troupe::nn::Dropout dropout_;
};
TROUPE_BLOCK(TransformerBlock);

/// Which of its layers ranks share (tensor_plan): attention by heads, the MLP by its inner channels, the embedding by
/// its rows.
inline constexpr const char* kGptPlan =
    "layers.*.attention.qkv: column/3, layers.*.attention.out: row, layers.*.up: column, layers.*.down: row, tokens: "
    "vocabulary, "
    "head?: gather, layers.*.attention_norm: sequence, layers.*.mlp_norm: sequence, norm: sequence, "
    "dropout: whole, layers.*.attention.dropout: sequence, layers.*.dropout: sequence";

/// A decoder-only transformer. Its layers are blocks: what FSDP shards, activation checkpointing recomputes, a pipeline
/// cuts between.
class GptImpl : public torch::nn::Module {
 public:
  /// Throws troupe::Error(usage) for options that can't be.
  explicit GptImpl(GptOptions options);
  /// ids (B, T) i64, T up to block_size -> scores (B, T, vocab_size). Throws troupe::Error(usage) for more.
  at::Tensor forward(const at::Tensor& ids);
  const GptOptions& options() const { return options_; }

 private:
  std::optional<at::Tensor> rotation(std::int64_t length, at::Device device) const;
  GptOptions options_;
  troupe::nn::Embedding tokens_{nullptr};
  torch::nn::Embedding positions_{nullptr};
  troupe::nn::Dropout dropout_;
  troupe::nn::TokenSplit token_split_;
  torch::nn::ModuleList layers_;
  torch::nn::LayerNorm norm_;
  troupe::nn::Linear head_{nullptr};
};
TORCH_MODULE(Gpt);

struct SamplingOptions {
  std::int64_t max_new_tokens = 200;
  double temperature = 0.8;  ///< 0: always the likeliest token
  std::int64_t top_k = 40;   ///< draw from the so many likeliest; 0: from all
  std::uint64_t seed = 1;
};

/// Goes on from `prompt`; returns the new tokens only. The same bits for the same seed. The model looks back on the
/// last block_size tokens and keeps nothing between two tokens.
std::vector<std::int64_t> generate(GptImpl& model, std::vector<std::int64_t> prompt, const SamplingOptions& options);
