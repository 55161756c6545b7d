#pragma once
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/strategy/micro_batch_order.hpp"
#include "actors/strategy/own_figures.hpp"
#include "strategies/mesh/pipeline_schedule.hpp"
#include "strategies/mesh/stage_cut.hpp"
#include "strategies/mesh/stage_links.hpp"
#include "strategies/mesh/stage_runner.hpp"
#include "tensor_io/layers/deferred_weights.hpp"

namespace troupe {

/// One rank of a pipeline: it runs the instructions of its list, forward and backward of a stage for a micro-batch, and
/// exchanges activations and their gradients with its neighbours. Compute's thread.
class RankPipeline {
 public:
  /// Hooks the blocks of `model`, which computes on `device`. `cut` outlives the pipeline, and is cut before the first
  /// run. Throws as StageRunner.
  RankPipeline(torch::nn::Module& model, c10::Device device, const StageCut& cut, std::string schedule);

  std::vector<std::string> blocks() const;  ///< their paths in the model

  /// Ends the links of a generation, and what was under way.
  void disconnect();
  /// Links the ranks of a generation. Collective over `pipeline`.
  void connect(const StrategyContext& context, Communicator& pipeline);
  void set_step(std::int64_t step);

  /// The rank's list for a step, whose number of micro-batches is the same in all steps. Throws as make_schedule.
  const StageSchedule& begin_run(int micro_batches);
  /// Runs one of them. Returns the weights whose `.grad` was added to, and not by autograd.
  std::vector<at::Tensor> run(const StageInstruction& instruction, MicroBatches& work);
  /// Waits until all sends have arrived.
  void finish_run();
  /// Drops what is under way.
  void abandon();

  /// Forward of all blocks, timed: (blocks,) f64, in ns.
  at::Tensor measure(MicroBatches& work);

  void begin_evaluation() noexcept { evaluations_ = 0; }
  /// Runs the rank's stages of one forward. Returns whether this rank ran the last one.
  bool evaluate(const std::function<void()>& forward);

  std::chrono::nanoseconds time_waited() const noexcept { return waited_; }  ///< for other stages, in runs
  OwnFigures::Figures figures() const { return schedule_.figures(); }

 private:
  struct Cell {  // a micro-batch in a chunk, between forward and backward
    at::Tensor input, output;
    std::unique_ptr<DeferredWeights> weights;
  };
  at::Tensor receive_input(int stage, int micro_batch);
  void forward(Cell& cell, int stage, int micro_batch, MicroBatches& work);
  void backward(Cell& cell, int stage, int micro_batch);

  StageRunner runner_;
  const StageCut& cut_;
  const std::string schedule_name_;
  RankSchedule schedule_;  // from the first run on
  int rank_ = 0, ranks_ = 1;
  std::unique_ptr<StageLinks> links_;
  std::map<std::pair<int, int>, Cell> cells_;  // by chunk and micro-batch
  std::int64_t step_ = 0;
  int evaluations_ = 0;
  std::chrono::nanoseconds waited_{0};
};

}  // namespace troupe
