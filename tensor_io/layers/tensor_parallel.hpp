#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "tensor_io/communicator/communicator.hpp"

namespace troupe {

/// The ranks that share layers, and how. A null communicator: nothing is shared.
struct TensorParallel {
  std::shared_ptr<Communicator> communicator;
  bool sequence = false;  ///< between the shared layers each rank has its own part of the tokens (dimension 1)

  /// Ranks that share the layers; 1: nothing is shared.
  int ranks() const noexcept { return communicator ? communicator->world_size() : 1; }
  /// This rank in the group.
  int rank() const noexcept { return communicator ? communicator->rank() : 0; }
};

/// Pairs of a collective and its derivative, as differentiable functions: f, g of Shoeybi et al., "Megatron-LM", 2019,
/// arXiv 1909.08053, and their counterparts over tokens of Korthikanti et al., 2022, arXiv 2205.05198. Each returns its
/// input if nothing is shared. The compute thread's, in the same order on all ranks of the communicator, forward and
/// backward; they throw the communicator's errors.
///
/// x on all ranks alike; its gradient is the sum over ranks.
at::Tensor copy_to_ranks(const at::Tensor& x, const TensorParallel& group);
/// The sum over ranks; each rank gets the gradient as it is.
at::Tensor sum_over_ranks(const at::Tensor& x, const TensorParallel& group);
/// (..., n) -> (..., ranks * n), in rank order; each takes its part of the gradient.
at::Tensor gather_last(const at::Tensor& x, const TensorParallel& group);
/// (B, T / ranks, ...) -> (B, T, ...); the gradient is summed over ranks, and each takes its tokens.
at::Tensor gather_tokens(const at::Tensor& x, const TensorParallel& group);
/// (B, T, ...) -> (B, T / ranks, ...), summed over ranks; the gradient is gathered. Throws Error(usage) if T can't be
/// divided.
at::Tensor sum_and_split_tokens(const at::Tensor& x, const TensorParallel& group);
/// As sum_and_split_tokens, for an x that all ranks have alike: nothing is summed.
at::Tensor split_tokens(const at::Tensor& x, const TensorParallel& group);

}  // namespace troupe
