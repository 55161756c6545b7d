#pragma once
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/block/block.hpp"
#include "actors/step/loss.hpp"
#include "launch/compiled/compiled_file.hpp"
#include "launch/compiled/compiled_graph.hpp"
#include "tensor_io/base/held_value.hpp"
#include "tensor_io/data/dataset.hpp"
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
  torch::nn::Module* block = nullptr;                      ///< of the model; null: what lies between blocks
};

/// While it lives, the dropout masks that this thread's compiled models draw are put into `masks`, in turn.
class CompiledMasks : HeldValue<std::vector<at::Tensor>*> {
 public:
  explicit CompiledMasks(std::vector<at::Tensor>& masks);
};

/// A block of a compiled model: what fsdp shards and a pipeline cuts after. It has the parameters of the Python module
/// at its path, with their names.
struct CompiledBlockImpl : torch::nn::Module {
  at::Tensor forward(const std::vector<at::Tensor>& values, const CompiledCall* call) { return call->run(values)[0]; }
};

/// A block that returns several tensors, or whose tensors go around other blocks: no pipeline cuts there.
struct CompiledBranchImpl : torch::nn::Module {
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& values, const CompiledCall* call) {
    return call->run(values);
  }
};

/// A model that was written in Python, with its loss, from the file of `troupe compile`. Parameters and buffers have
/// the names of Python's state_dict() and the first values of the file, so a checkpoint loads there as it is:
/// `model.load_state_dict(load_file("best.safetensors"))`. Blocks are those of the file. In train mode dropout draws
/// Troupe's masks (a function of seed, step, micro-batch, rank and layer), which are other ones than PyTorch's.
///
///     troupe::Job job;
///     job.model = [](const troupe::Config&) { return std::make_shared<troupe::CompiledModel>("gpt.tm"); };
///     job.loss = [](torch::nn::Module& model, const troupe::Batch& batch, const troupe::Config&) {
///       return dynamic_cast<troupe::CompiledModel&>(model).loss(batch);
///     };
///
/// The file is code and is as trusted as a program (SECURITY.md). Each rank makes its own; one thread.
class CompiledModel : public torch::nn::Module {
 public:
  /// Throws Error(bad_data), Error(unavailable): see CompiledFile.
  explicit CompiledModel(const std::string& path);

  /// Loss (a mean, or a sum with its count) and correct samples as the Python function returned them. In eval mode
  /// nothing is differentiable. Throws Error(mismatch) for a batch that does not fit, naming field and shape.
  Loss loss(const Batch& batch);

  const CompiledManifest& manifest() const noexcept { return manifest_; }
  /// Of the file; equal on all ranks of a job.
  std::uint64_t file_hash() const noexcept { return hash_; }

 private:
  void add_tensors(const CompiledFile& file);
  torch::nn::Module& module_at(const std::string& path);
  std::vector<CompiledCall> calls_of(const CompiledPass& pass, const CompiledFile& file);

  CompiledManifest manifest_;
  std::uint64_t hash_ = 0;
  std::map<std::string, at::Tensor, std::less<>> tensors_, constants_;
  std::vector<std::shared_ptr<const CompiledGraph>> graphs_;
  std::vector<CompiledCall> train_, eval_;
};

}  // namespace troupe
