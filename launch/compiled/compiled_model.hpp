#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "actors/step/loss.hpp"
#include "tensor_io/data/dataset.hpp"
#include "tensor_io/layers/module_code.hpp"

namespace troupe {

struct CompiledManifest;

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
class CompiledModel : public torch::nn::Module, public ModuleCode {
 public:
  /// Throws Error(bad_data), Error(unavailable): see CompiledFile.
  explicit CompiledModel(const std::string& path);
  ~CompiledModel() override;

  /// Loss (a mean, or a sum with its count) and correct samples as the Python function returned them. In eval mode
  /// nothing is differentiable. Throws Error(mismatch) for a batch that does not fit, naming field and shape.
  Loss loss(const Batch& batch);

  /// The file's description of the model: fields of the batch, tensors, blocks.
  const CompiledManifest& manifest() const noexcept;
  std::uint64_t file_hash() const noexcept override;

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace troupe
