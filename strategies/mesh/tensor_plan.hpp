#pragma once
#include <torch/torch.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_io/layers/parallel_layers.hpp"

namespace troupe {

/// The layers that the ranks of a tensor-parallel group share, and how they share them, as text:
///
///     layers.*.attention.qkv: column/3, layers.*.attention.out: row, tokens: vocabulary, norm: sequence
///
/// column   a Linear's outputs are split; column/3: a rank gets a part of each of three equal parts (query, key, value)
/// gather   as column, and all ranks get all outputs: an output layer
/// row      a Linear's inputs are split, as column has left them
/// vocabulary  an Embedding's rows are split
/// sequence    not split; but with sequence_parallel it sees only this rank's tokens, so its gradients have to be
///             summed
///
/// A troupe::nn::Dropout drops the same elements as on one rank, so the plan says which part of its input a rank has:
/// column (between a column and a row layer: along the last dimension), sequence, or whole. Without column layers and
/// sequence_parallel it is whole, and need not be named.
///
/// Paths are those of modules; `*` stands for one name, `**` for any number of them. A path with `?` behind it may
/// match nothing.
struct TensorPlanEntry {
  std::string pattern;
  LayerSplit split = LayerSplit::none;  ///< none: sequence
  std::int64_t stack = 1;
  bool optional = false;
};
/// Throws Error(usage) naming the wrong entry.
std::vector<TensorPlanEntry> parse_tensor_plan(std::string_view text);

/// A model's parameters under a plan, by name.
struct SharedParameters {
  std::map<std::string, ParameterCut> cuts;  ///< of those that are cut
  std::vector<std::string> partial;          ///< whole ones whose gradient is a part: the ranks' sum is the gradient
};

/// Cuts the layers that the plan names: each rank keeps its part of the parameters. `cut_values` false: they have been
/// cut, and the communicator is a new generation's. Throws Error(usage) if a pattern matches no layer, or the layer is
/// not of troupe::nn, or can't be divided.
SharedParameters share_layers(torch::nn::Module& model, const std::vector<TensorPlanEntry>& plan,
                              const TensorParallel& group, bool cut_values);

}  // namespace troupe
