#pragma once
// The model of a drawn job, for LibTorch's layers (the reference) and for Troupe's: a Kit says which.
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/differential/job.hpp"
#include "tests/differential/samples.hpp"

namespace troupe::differential {

/// Where in the run a forward is: branches of the model go by it. The reference runs several ranks' batches at once.
struct Place {
  std::int64_t step = 0;
  int micro_batch = 0;
  struct Part {
    int rank = 0;
    std::int64_t first = 0, rows = 0;  ///< the number of its first sample; samples
  };
  std::vector<Part> parts;
};

/// x (n, ..., kWidth) -> the same shape: norm, then attention over the tokens where there are some, then a layer.
template <class Kit>
struct CellImpl : torch::nn::Module {
  explicit CellImpl(const Job& job) {
    to_f32 = job.device == "fake" && job.amp != "none";  // what autocast does there, as on CUDA, and not on the CPU
    if (job.norm == "layer")
      layer_norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    if (job.norm == "batch") batch_norm = register_module("norm", typename Kit::BatchNorm(kWidth));
    if (job.model == "tokens") qkv = register_module("qkv", typename Kit::Linear(kWidth, 3 * kWidth));
    linear = register_module("linear", typename Kit::Linear(kWidth, kWidth));
    if (job.dropout > 0) dropout = register_module("dropout", typename Kit::Dropout(job.dropout));
  }

  at::Tensor forward(const at::Tensor& x) {
    auto y = x;
    if (layer_norm) y = layer_norm(to_f32 && y.element_size() == 2 ? y.to(at::kFloat) : y);
    if (batch_norm) y = batch_norm(y.reshape({-1, kWidth})).view(x.sizes());
    if (qkv) {
      const auto parts = qkv(y).chunk(3, -1);
      const auto weights = (parts[0].matmul(parts[1].transpose(-1, -2)) / std::sqrt(double{kWidth})).softmax(-1);
      y = weights.matmul(parts[2]);
    }
    y = torch::tanh(linear(y));
    return x + (dropout ? dropout(y) : y);
  }

  torch::nn::LayerNorm layer_norm{nullptr};
  typename Kit::BatchNorm batch_norm{nullptr};
  typename Kit::Linear qkv{nullptr}, linear{nullptr};
  typename Kit::Dropout dropout{nullptr};
  bool to_f32 = false;
};

template <class Kit>
struct NetImpl : torch::nn::Module {
  using Cell = typename Kit::template Block<CellImpl<Kit>>;

  explicit NetImpl(const Job& job) : job_(job) {
    if (job.model == "tokens") {
      auto options = torch::nn::EmbeddingOptions(kWords, kWidth);
      if (job.padding_idx >= 0) options.padding_idx(job.padding_idx);
      words = register_module("words", typename Kit::Embedding(options));
    } else if (job.model == "conv") {
      conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, kWidth, 3)));
    } else {
      in = register_module("in", typename Kit::Linear(kWidth, kWidth));
    }
    for (int c = 0; c < job.cells; ++c) cells.push_back(register_module("cell" + std::to_string(c), Cell(job)));
    if (job.tie == "module_twice") register_module("cell_again", cells.front());
    if (job.tie == "two_names") again = register_parameter("again", cells.front()->linear->weight);
    if (job.unused != "none") side = register_module("side", typename Kit::Linear(kWidth, kWidth));
    add_odd();
    const auto outputs = job.model == "tokens" ? kWords : kClasses;
    if (job.tie != "output") head = register_module("head", typename Kit::Linear(kWidth, outputs));
  }

  /// (n, ...) as input_of -> (n, kClasses), tokens (n, kLength, kWords).
  at::Tensor forward(const at::Tensor& input, const Place& place) {
    auto x = job_.model == "tokens" ? words(input)
             : job_.model == "conv" ? torch::tanh(conv(input)).mean({2, 3})
                                    : torch::tanh(in(input));
    for (auto& cell : cells) x = cell(x);
    if (job_.tie == "module_twice") x = cells.front()(x);
    if (again.defined()) x = torch::tanh(x.matmul(again.to(x.scalar_type())));
    if (side) x = with_side(x, place);
    x = with_odd(x);
    return job_.tie == "output" ? Kit::scores(words, x) : head(x);
  }

  std::vector<Cell> cells;

 private:
  bool uses_side(const Place& place, const Place::Part& part) const {
    if (job_.unused == "always") return false;
    if (job_.unused == "step") return place.step % 2 == 1;
    if (job_.unused == "micro_batch") return place.micro_batch == 0;
    if (job_.unused == "rank") return part.rank == 0;
    return part.first % 2 == 0;  // data
  }
  at::Tensor with_side(const at::Tensor& x, const Place& place) {
    auto used = at::zeros({x.size(0)}, x.options().requires_grad(false));
    std::int64_t row = 0, rows = 0;
    for (const auto& part : place.parts) {
      if (uses_side(place, part)) {
        used.narrow(0, row, part.rows).fill_(1);
        rows += part.rows;
      }
      row += part.rows;
    }
    if (rows == 0) return x;
    if (rows == x.size(0)) return x + torch::tanh(side(x));
    std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
    shape[0] = x.size(0);
    return x + torch::tanh(side(x)) * used.view(shape);
  }
  void add_odd() {
    if (job_.odd == "scalar") odd = register_parameter("odd", torch::ones({}));
    if (job_.odd == "empty") odd = register_parameter("odd", torch::ones({0}));
    if (job_.odd == "strided") odd = register_parameter("odd", torch::ones({kWidth, kWidth}).t());
    if (job_.odd == "bfloat16") odd = register_parameter("odd", torch::ones({kWidth}, at::kBFloat16));
  }
  at::Tensor with_odd(const at::Tensor& x) const {
    if (!odd.defined()) return x;
    const auto value = odd.to(x.scalar_type());
    if (job_.odd == "empty") return x + value.sum();
    return job_.odd == "strided" ? x + torch::tanh(x.matmul(value)) : x * value;
  }

  const Job job_;
  typename Kit::Embedding words{nullptr};
  torch::nn::Conv2d conv{nullptr};
  typename Kit::Linear in{nullptr}, side{nullptr}, head{nullptr};
  at::Tensor again, odd;
};

/// First values, a function of name and place; then the dtype.
inline void fill(torch::nn::Module& net, const Job& job) {
  torch::NoGradGuard no_grad;
  for (auto& item : net.named_parameters()) {
    auto& parameter = item.value();
    if (item.key() == "again" || item.key().starts_with("cell_again.")) continue;  // has its values by another name
    double key = 0;
    for (const char c : item.key()) key = std::fmod(key * 1.7 + static_cast<double>(c), 89);
    auto values = at::arange(parameter.numel(), at::kDouble).view(parameter.sizes());
    values = 0.6 * at::sin(values * 1.9 + key);
    if (item.key().ends_with("norm.weight") || item.key() == "odd") values = 1 + 0.2 * values;
    if (parameter.scalar_type() != at::kBFloat16) parameter.set_data(at::empty_like(parameter, dtype_of(job)));
    parameter.copy_(values);
  }
  for (auto& item : net.named_buffers()) {
    if (item.value().is_floating_point()) item.value().set_data(item.value().to(dtype_of(job)));
  }
}

/// The parameters that `frozen` is about.
inline bool may_be_frozen(const std::string& name) { return name.starts_with("cell0.linear.") || name == "again"; }
inline bool frozen_in(const Job& job, std::int64_t step) {
  return job.frozen == "always" || (job.frozen == "later" && step >= kChangeStep) ||
         ((job.frozen == "first" || job.frozen == "toggled") && step < kChangeStep);
}
inline void freeze(torch::nn::Module& net, const Job& job, std::int64_t step) {
  if (job.frozen == "none") return;
  for (auto& item : net.named_parameters()) {
    if (may_be_frozen(item.key())) item.value().set_requires_grad(!frozen_in(job, step));
  }
}

/// What a program does to the parameters itself, beside the optimizer.
inline void touch(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  const torch::NoGradGuard no_grad;
  for (auto [name, parameter] : parameters) parameter.mul_(0.99);
}

/// Which of two groups a parameter is in, by its first name.
inline bool in_second_group(const std::string& name) { return name.starts_with("cell") || name == "side.weight"; }

}  // namespace troupe::differential
