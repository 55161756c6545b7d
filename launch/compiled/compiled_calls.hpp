#pragma once
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "actors/block/block.hpp"
#include "launch/compiled/compiled_graph.hpp"
#include "tensor_io/base/held_value.hpp"
#include "tensor_io/layers/dropout.hpp"

namespace troupe {

/// One call of a graph with the model's own tensors. Belongs to its model.
class CompiledCall {
 public:
  /// Values that other calls computed -> results.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& values) const;

  std::shared_ptr<const CompiledGraph> graph;
  std::vector<at::Tensor> tensors;                         ///< one per input; undefined: a value or a mask
  std::vector<std::shared_ptr<nn::DropoutImpl>> dropouts;  ///< one per input; empty: no mask
  std::vector<std::string> names;                          ///< one per input, for errors
  std::vector<std::size_t> values;                         ///< numbers of the values that it takes, in order
  std::vector<std::size_t> results;                        ///< numbers that its results get
  torch::nn::Module* block = nullptr;                      ///< of the model; null: the part between blocks
};

/// While it lives, the dropout masks that this thread's compiled models draw are put into `masks`, in turn.
class CompiledMasks : HeldValue<std::vector<at::Tensor>*> {
 public:
  explicit CompiledMasks(std::vector<at::Tensor>& masks);
};

/// A block of a compiled model: fsdp shards it, and a pipeline cuts after it. It has the parameters of the Python
/// module at its path, with their names.
struct CompiledBlockImpl : torch::nn::Module {
  at::Tensor forward(const std::vector<at::Tensor>& values, const CompiledCall* call) { return call->run(values)[0]; }
};

/// A block that returns several tensors, or whose tensors go around other blocks: no pipeline cuts there.
struct CompiledBranchImpl : torch::nn::Module {
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& values, const CompiledCall* call) {
    return call->run(values);
  }
};

}  // namespace troupe
