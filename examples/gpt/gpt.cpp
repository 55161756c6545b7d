#include "gpt.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

namespace {

torch::nn::LayerNorm layer_norm(const GptOptions& options) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.n_embd}));
}

/// x (B, H, T, D): pairs (i, i + D/2) turn by their position's angle.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& rotation) {
  const auto halves = x.chunk(2, -1);
  const auto cosine = rotation[0].to(x.scalar_type()), sine = rotation[1].to(x.scalar_type());
  return torch::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
}

void check(const GptOptions& o) {
  const auto refuse = [](const std::string& field, const std::string& cause) {
    throw troupe::Error(troupe::ErrorCode::usage, field, cause);
  };
  if (o.n_layer < 1 || o.n_head < 1 || o.n_embd < 1) refuse("n_layer, n_head, n_embd", "each must be at least 1");
  if (o.block_size < 1 || o.vocab_size < 2) refuse("block_size, vocab_size", "they must be at least 1 and 2");
  if (o.n_embd % o.n_head != 0)
    refuse("n_embd", std::to_string(o.n_embd) + " can't be divided among " + std::to_string(o.n_head) + " heads");
  if (o.rotary && o.n_embd / o.n_head % 2 != 0)
    refuse("positions", "rotary ones need an even number of channels in a head");
  if (o.dropout < 0 || o.dropout >= 1) refuse("dropout", "it must be from 0 to below 1");
}

}  // namespace

AttentionImpl::AttentionImpl(const GptOptions& options)
    : n_head_(options.n_head),
      qkv_(register_module("qkv", troupe::nn::Linear(options.n_embd, 3 * options.n_embd))),
      out_(register_module("out", troupe::nn::Linear(options.n_embd, options.n_embd))),
      dropout_(register_module("dropout", troupe::nn::Dropout(options.dropout))) {}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const std::optional<at::Tensor>& rotation) {
  const auto all = qkv_(x);  // (B, T, 3 * H * D): this rank's heads, where ranks share them
  const auto batch = all.size(0), length = all.size(1), each = x.size(2) / n_head_;
  if (all.size(2) % (3 * each) != 0) {
    throw troupe::Error(troupe::ErrorCode::usage, "n_head",
                        std::to_string(n_head_) + " heads can't be divided among the ranks that share them",
                        "make it a multiple of tp");
  }
  const auto parts = all.view({batch, length, 3, -1, each}).permute({2, 0, 3, 1, 4});  // (3, B, H, T, D)
  auto query = parts[0], key = parts[1];
  if (rotation) {
    query = rotate(query, *rotation);
    key = rotate(key, *rotation);
  }
  const auto mixed = at::scaled_dot_product_attention(query, key, parts[2], {}, /*dropout_p=*/0, /*is_causal=*/true);
  return dropout_(out_(mixed.transpose(1, 2).reshape({batch, length, -1})));
}

TransformerBlockImpl::TransformerBlockImpl(const GptOptions& options)
    : attention_norm_(register_module("attention_norm", layer_norm(options))),
      mlp_norm_(register_module("mlp_norm", layer_norm(options))),
      attention_(register_module("attention", Attention(options))),
      up_(register_module("up", troupe::nn::Linear(options.n_embd, 4 * options.n_embd))),
      down_(register_module("down", troupe::nn::Linear(4 * options.n_embd, options.n_embd))),
      dropout_(register_module("dropout", troupe::nn::Dropout(options.dropout))) {}

at::Tensor TransformerBlockImpl::forward(at::Tensor x, const std::optional<at::Tensor>& rotation) {
  x = x + attention_(attention_norm_(x), rotation);
  return x + dropout_(down_(torch::gelu(up_(mlp_norm_(x)), "tanh")));
}

GptImpl::GptImpl(GptOptions options)
    : options_((check(options), options)),
      dropout_(register_module("dropout", troupe::nn::Dropout(options.dropout))),
      norm_(layer_norm(options)) {
  tokens_ = register_module("tokens", troupe::nn::Embedding(options.vocab_size, options.n_embd));
  if (!options.rotary)
    positions_ = register_module("positions", torch::nn::Embedding(options.block_size, options.n_embd));
  register_module("token_split", token_split_);
  register_module("layers", layers_);
  for (std::int64_t i = 0; i < options.n_layer; ++i) layers_->push_back(TransformerBlock(options));
  register_module("norm", norm_);
  if (!options.tied_head) {
    head_ = register_module(
        "head", troupe::nn::Linear(torch::nn::LinearOptions(options.n_embd, options.vocab_size).bias(false)));
  }
  // GPT-2's initial values: what adds to the residual stream is smaller the more layers add to it.
  torch::NoGradGuard no_grad;
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(options.n_layer));
  for (const auto& parameter : named_parameters()) {
    const auto& name = parameter.key();
    if (name.ends_with(".bias")) {
      parameter.value().zero_();
    } else if (parameter.value().dim() > 1) {
      parameter.value().normal_(0, name.ends_with("out.weight") || name.ends_with("down.weight") ? residual : 0.02);
    }
  }
}

std::optional<at::Tensor> GptImpl::rotation(std::int64_t length, at::Device device) const {
  if (!options_.rotary) return std::nullopt;
  const auto half = options_.n_embd / options_.n_head / 2;
  const auto there = at::TensorOptions().dtype(torch::kFloat).device(device);
  const auto frequency = torch::pow(10000.0, -torch::arange(half, there) / static_cast<double>(half));
  const auto angle = torch::outer(torch::arange(length, there), frequency);
  return torch::stack({angle.cos(), angle.sin()});
}

at::Tensor GptImpl::forward(const at::Tensor& ids) {
  const auto length = ids.size(1);
  if (length > options_.block_size) {
    throw troupe::Error(
        troupe::ErrorCode::usage, "gpt",
        std::to_string(length) + " tokens are more than block_size " + std::to_string(options_.block_size));
  }
  auto x = tokens_(ids);
  if (positions_) x = x + positions_(torch::arange(length, ids.options()));
  x = token_split_(dropout_(x));
  const auto turn = rotation(length, ids.device());
  for (const auto& layer : *layers_) x = layer->as<TransformerBlock::Impl>()->forward(x, turn);
  x = norm_(x);
  return head_ ? head_(x) : tokens_->scores(x);
}

std::vector<std::int64_t> generate(GptImpl& model, std::vector<std::int64_t> prompt, const SamplingOptions& options) {
  torch::NoGradGuard no_grad;
  model.eval();
  auto generator = at::detail::createCPUGenerator(options.seed);
  const auto begin = prompt.size();
  auto ids = std::move(prompt);
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const auto seen = std::min<std::int64_t>(static_cast<std::int64_t>(ids.size()), model.options().block_size);
    const auto context = torch::tensor(
        at::ArrayRef<std::int64_t>(ids.data() + ids.size() - seen, static_cast<std::size_t>(seen)), torch::kLong);
    auto scores = model.forward(context.unsqueeze(0))[0][seen - 1].to(torch::kFloat);
    if (options.temperature == 0) {
      ids.push_back(scores.argmax().item<std::int64_t>());
      continue;
    }
    scores = scores / options.temperature;
    if (options.top_k > 0 && options.top_k < scores.numel()) {
      const auto least = std::get<0>(scores.topk(options.top_k)).min();
      scores = scores.masked_fill(scores < least, -std::numeric_limits<float>::infinity());
    }
    ids.push_back(at::multinomial(torch::softmax(scores, 0), 1, /*replacement=*/true, generator).item<std::int64_t>());
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end()};
}
