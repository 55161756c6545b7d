#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/compiled/compiled_file.hpp"
#include "launch/compiled/compiled_manifest.hpp"

namespace troupe {

/// The batch's sizes of one call, by name: `s0` is 32.
using CompiledSizes = std::map<std::string, std::int64_t, std::less<>>;

/// One forward and its backward, as a node of autograd. AOTInductor's code checks nothing, so dtype, shape and layout
/// of every tensor are checked here. A graph is one rank's; calls come from one thread at a time.
class CompiledGraph {
 public:
  /// Graph `index` of the file. `path`: the file's, for errors.
  CompiledGraph(const CompiledFile& file, std::size_t index);
  ~CompiledGraph();

  /// Makes an input that is not given, in this shape.
  using Draw = std::function<at::Tensor(std::size_t input, const std::vector<std::int64_t>& shape)>;

  /// inputs -> outputs, differentiable if an input requires grad and grad mode is on. Undefined inputs are drawn.
  /// Activations and gradients with another layout are copied; parameters and buffers are not, and are refused. Inputs
  /// that forward writes to get their new values, unless `keep_written`. Throws Error(mismatch) if a tensor does not
  /// fit; `names` has one for each input.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs, const std::vector<std::string>& names, bool keep_written,
                              const Draw& draw) const;

  struct Code;

 private:
  std::vector<std::int64_t> shape(std::size_t input, const CompiledSizes& sizes) const;

  std::shared_ptr<const Code> code_;
};

}  // namespace troupe
