#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/compute/micro_batch_graphs.hpp"
#include "actors/step/loss.hpp"
#include "launch/config/config.hpp"
#include "launch/loop/loop_times.hpp"
#include "launch/loop/rank_system.hpp"
#include "launch/loop/run_schedule.hpp"
#include "strategies/batch_norm/uncounted_forward.hpp"
#include "tensor_io/data/dataset.hpp"
#include "tensor_io/layers/autocast.hpp"

namespace troupe {

/// The batch in the form for cuda_graphs: all of its fields are a graph's inputs, and `forward` gets a batch with the
/// inputs in their places. Of the rest that batch has `counted` alone: the host's numbers would be those of the
/// captured batch. Batches whose fields have other names are of another kind. Both must outlive it.
GraphedMicroBatch graphed_micro_batch(const Batch& batch, const std::function<Loss(const Batch&)>& forward);

/// Forward and backward of the batches that a program's loop gets, one by one or a step's all together. Compute's
/// thread.
class LoopMicroBatches {
 public:
  /// `model` holds none before distribute. All must outlive it.
  LoopMicroBatches(const Config& config, RankSystem& system, const std::shared_ptr<torch::nn::Module>& model,
                   const RunSchedule& schedule, LoopTimes& times)
      : config_(config), system_(system), model_(model), schedule_(schedule), times_(times) {}
  ~LoopMicroBatches() { forget_uncounted(); }
  LoopMicroBatches(const LoopMicroBatches&) = delete;
  LoopMicroBatches& operator=(const LoopMicroBatches&) = delete;

  /// A batch is handed out, with Compute::backward's weight; 0: this rank repeats it, and it counts nothing.
  void begin(std::int64_t samples, double weight);
  /// The next batch is not of that loop.
  void end_loop() noexcept;

  /// As in Rank.
  AutocastGuard autocast();
  void backward(const Loss& loss);
  void backward(const Loss& loss, double samples, double weight);
  bool are_ordered() const;
  void run(const std::vector<std::shared_ptr<const Batch>>& batches, const std::function<Loss(const Batch&)>& forward);

 private:
  void run_graphed(const std::vector<std::shared_ptr<const Batch>>& batches,
                   const std::function<Loss(const Batch&)>& forward);
  void forget_uncounted() noexcept;

  const Config& config_;
  RankSystem& system_;
  const std::shared_ptr<torch::nn::Module>& model_;
  const RunSchedule& schedule_;
  LoopTimes& times_;
  bool has_autocast_ = false;                  // the loop asked for it
  double samples_ = 0, weight_ = 1;            // of the batch handed out last
  std::optional<UncountedForward> uncounted_;  // of that batch, if this rank repeats it
};

}  // namespace troupe
