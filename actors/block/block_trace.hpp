#pragma once
#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

#include "actors/block/block_calls.hpp"
#include "tensor_io/base/trace.hpp"

namespace troupe {

/// Spans of a model's blocks, forward and backward, on the rank's track `blocks`, while attached. Blocks pay for hooks
/// only then. Attached and detached between steps, by compute's thread.
class BlockTrace {
 public:
  BlockTrace(std::shared_ptr<torch::nn::Module> model, std::shared_ptr<TraceRecorder> recorder);
  ~BlockTrace();
  BlockTrace(const BlockTrace&) = delete;
  BlockTrace& operator=(const BlockTrace&) = delete;

 private:
  std::shared_ptr<torch::nn::Module> model_;  // keeps the blocks
  std::vector<std::pair<BlockCalls*, std::shared_ptr<BlockHook>>> hooks_;
};

}  // namespace troupe
