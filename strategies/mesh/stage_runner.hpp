#pragma once
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "actors/block/block_calls.hpp"

namespace troupe {

/// Another rank runs the rest of a forward. No std::exception, so that no program takes it for an error.
struct StageEnded {};

/// Runs a part of a model's forward: the program calls its whole forward and loss, and only the stage's blocks compute.
///
/// The blocks of a pipeline are the model's outermost ones, in the order of registration, which must be that of their
/// calls, each once. Blocks before the stage return the output of the stage before, so that code between them runs on
/// values of the right shape. The first call behind the stage ends the forward by an exception, StageEnded. So code
/// outside of blocks runs on every rank if it is before the first block, and on the last stage alone if it is after the
/// last one. Activation checkpointing stays with the blocks. Compute's thread.
class StageRunner {
 public:
  /// Hooks the blocks of `model`, which computes on `device`. Throws Error(usage) if it has none.
  StageRunner(torch::nn::Module& model, c10::Device device);
  ~StageRunner();
  StageRunner(const StageRunner&) = delete;
  StageRunner& operator=(const StageRunner&) = delete;

  struct Found {
    BlockCalls* block = nullptr;
    std::string name;  ///< path in the model
  };
  const std::vector<Found>& blocks() const noexcept { return blocks_; }

  /// From now on forwards run the blocks [begin, end), from `input`, which is undefined if begin is 0.
  void begin(int begin, int end, at::Tensor input);
  /// All blocks run, and are timed.
  void begin_measuring();
  /// As without hooks, from now on. Throws Error(usage) if the program left out blocks.
  void end();
  /// The result of the stage's last block.
  const at::Tensor& output() const noexcept { return output_; }
  /// By block, of forwards since begin_measuring.
  const std::vector<std::chrono::nanoseconds>& times() const noexcept { return times_; }

 private:
  class Runner;
  enum class Mode { whole, part, measure };
  void expect(int block);
  void wait_for_device() const;

  c10::Device device_;
  std::vector<Found> blocks_;
  Mode mode_ = Mode::whole;
  int begin_ = 0, end_ = 0, next_ = 0;
  at::Tensor input_, output_;
  std::vector<std::chrono::nanoseconds> times_;
};

}  // namespace troupe
