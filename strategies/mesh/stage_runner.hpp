#pragma once
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "actors/block/block_calls.hpp"

namespace troupe {

/// The rest of a forward is another rank's. No std::exception, so that no program takes it for an error.
struct StageEnded {};

/// Runs a part of a model's forward: the program calls its whole forward and loss, and only the stage's blocks compute.
///
/// The blocks of a pipeline are the model's outermost ones, in the order of registration, which must be that of their
/// calls, each once. Blocks before the stage return what came from the stage before, so that code between them runs on
/// something of the right shape; the first call behind the stage ends the forward by an exception, StageEnded. So code
/// outside of the blocks before the first one runs on every rank, and what follows the last block on the last stage
/// alone. Activation checkpointing stays with the blocks. Compute's thread.
class StageRunner {
 public:
  /// Hooks the blocks of `model`, which computes on `device`. Throws Error(usage) where it has none.
  StageRunner(torch::nn::Module& model, c10::Device device);
  ~StageRunner();
  StageRunner(const StageRunner&) = delete;
  StageRunner& operator=(const StageRunner&) = delete;

  struct Found {
    BlockCalls* block = nullptr;
    std::string name;  ///< path in the model
  };
  const std::vector<Found>& blocks() const noexcept { return blocks_; }

  /// From now on forwards run the blocks [begin, end), from `input`, which is undefined where begin is 0.
  void begin(int begin, int end, at::Tensor input);
  /// All blocks run, and are timed.
  void begin_measuring();
  /// As if nothing were hooked, from now on. Throws Error(usage) where blocks were left out by the program.
  void end();
  /// What the stage's last block returned.
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
