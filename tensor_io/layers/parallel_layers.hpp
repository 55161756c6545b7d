#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensor_io/layers/tensor_parallel.hpp"

namespace troupe {

/// How the ranks of a tensor-parallel group share a layer.
enum class LayerSplit : std::uint8_t {
  none,
  column,      ///< each rank has a part of the outputs, which stays on it
  gather,      ///< as column, and all ranks get all outputs
  row,         ///< each rank has a part of the inputs, as column leaves them; outputs are summed
  vocabulary,  ///< of an embedding: each rank has a part of the rows
  whole,       ///< of a dropout: all ranks have its whole input
};

/// The rows or columns of a parameter that a rank holds: in each of `stack` equal parts of dimension `dim` one run of
/// neighbours.
struct ParameterCut {
  int dim = -1;  ///< negative: all ranks hold all of it
  std::int64_t stack = 1;
  int ranks = 1, rank = 0;

  /// Neighbouring rows or columns that one rank holds.
  struct Run {
    std::int64_t whole = 0, own = 0,
                 length = 0;  ///< its begin in the whole parameter and in the rank's, along `dim`
  };
  /// Of a parameter whose whole dimension is `length`. Throws Error(usage) naming `what` if it can't be divided.
  std::vector<Run> runs(std::int64_t length, const std::string& what) const;
};

namespace nn {

/// torch::nn::Linear, which a tensor-parallel strategy may share among ranks: Shoeybi et al., "Megatron-LM", 2019,
/// arXiv 1909.08053. Without sharing it is torch::nn::Linear to the bit. Within a DeferredWeights::Scope backward
/// leaves the weight's gradient for later.
class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;

  /// (..., in) -> (..., out). Shared: column (..., in) -> (..., out / ranks), row (..., in / ranks) -> (..., out). With
  /// sequence parallel, column takes and row returns (B, T / ranks, ...). Throws the communicator's errors.
  at::Tensor forward(const at::Tensor& x);

  /// The weight is this rank's part now; `group` is the communicator of this generation.
  void share(LayerSplit split, TensorParallel group) {
    split_ = split;
    group_ = std::move(group);
  }
  /// How the layer is shared.
  LayerSplit split() const noexcept { return split_; }
  /// A pipeline cuts backward in two (DeferredWeights).
  void may_defer_weight(bool may) noexcept { may_defer_ = may; }

 private:
  at::Tensor product(const at::Tensor& x, const at::Tensor& bias) const;
  LayerSplit split_ = LayerSplit::none;
  TensorParallel group_;
  bool may_defer_ = false;
};
TORCH_MODULE(Linear);

/// torch::nn::Embedding whose rows ranks may share, and which may be the output layer too. If it is shared, padding_idx
/// is the only option that holds; a plan refuses max_norm, scale_grad_by_freq and sparse.
class EmbeddingImpl : public torch::nn::EmbeddingImpl {
 public:
  using torch::nn::EmbeddingImpl::EmbeddingImpl;

  /// ids (...) i64 -> (..., C). Throws for an id that is no row, as LibTorch does: shared, Error(usage) (CPU only).
  at::Tensor forward(const at::Tensor& ids);
  /// x (..., C) -> (..., V): each row's product with x, all of them on all ranks. With sequence parallel x is (B, T /
  /// ranks, C).
  at::Tensor scores(const at::Tensor& x);

  /// The weight is this rank's rows now; `group` is the communicator of this generation.
  void share(LayerSplit split, TensorParallel group) {
    split_ = split;
    group_ = std::move(group);
  }

 private:
  LayerSplit split_ = LayerSplit::none;
  TensorParallel group_;
};
TORCH_MODULE(Embedding);

/// The place at which tokens are split: with sequence parallel (B, T, ...) -> (B, T / ranks, ...), else the same.
class TokenSplitImpl : public torch::nn::Module {
 public:
  /// With sequence parallel this rank's tokens of `x`, else `x`.
  at::Tensor forward(const at::Tensor& x) { return group_.sequence ? split_tokens(x, group_) : x; }
  /// `group` is the communicator of this generation.
  void share(TensorParallel group) { group_ = std::move(group); }

 private:
  TensorParallel group_;
};
TORCH_MODULE(TokenSplit);

}  // namespace nn
}  // namespace troupe
