#include "launch/loop/loop_micro_batches.hpp"

#include <string>

#include "actors/strategy/micro_batch_order.hpp"

namespace troupe {

GraphedMicroBatch graphed_micro_batch(const Batch& batch, const std::function<Loss(const Batch&)>& forward) {
  GraphedMicroBatch graphed;
  for (const auto& [name, tensor] : batch.fields()) {
    graphed.inputs.push_back(tensor);
    graphed.kind += name + " ";
  }
  graphed.samples = static_cast<double>(batch.numel());
  graphed.weight = batch.weight;
  if (batch.counted != batch.numel()) graphed.kind += "counted " + std::to_string(batch.counted);
  graphed.forward = [&](const std::vector<at::Tensor>& inputs) {
    auto fields = batch.fields();
    for (std::size_t i = 0; i < fields.size(); ++i) fields[i].second = inputs.at(i);
    Batch of_graph;
    of_graph.counted = batch.counted;
    of_graph.set_fields(fields);
    return forward(of_graph);
  };
  return graphed;
}

void LoopMicroBatches::begin(std::int64_t samples, double weight) {
  samples_ = static_cast<double>(samples);
  weight_ = weight;
  forget_uncounted();
  if (weight == 0 && model_) uncounted_.emplace(*model_);
  system_.compute().seed_forward();
  times_.begin_forward();
}

// Its forward is not done, or its step was given up.
void LoopMicroBatches::forget_uncounted() noexcept {
  if (uncounted_) uncounted_->keep_buffers();
  uncounted_.reset();
}

void LoopMicroBatches::end_loop() noexcept {
  samples_ = 0;
  weight_ = 1;
  forget_uncounted();
}

AutocastGuard LoopMicroBatches::autocast() {
  has_autocast_ = true;
  const auto dtype = config_.amp_dtype == "fp16" ? at::kHalf : at::kBFloat16;
  return AutocastGuard(config_.use_amp, dtype, system_.options().device.type());
}

bool LoopMicroBatches::are_ordered() const {
  auto& compute = system_.compute();
  return compute.strategy().capability<MicroBatchOrder>() != nullptr || compute.uses_graphs();
}

// A batch that was not handed out counts as one sample: the step's loss is the mean of the ranks' means.
void LoopMicroBatches::backward(const Loss& loss) {
  const bool unknown = samples_ == 0 && weight_ > 0;
  if (unknown && (loss.correct.on_device().defined() || loss.correct.value() > 0)) {
    throw Error(ErrorCode::usage, "backward",
                "the loss counts correct samples, but the number of samples in the batch is unknown",
                "call rank.backward(loss, samples, 1), or take batches from rank.loader or rank.uneven");
  }
  backward(loss, unknown ? 1 : samples_, weight_);
}

void LoopMicroBatches::backward(const Loss& loss, double samples, double weight) {
  if (system_.compute().uses_graphs()) {
    throw Error(ErrorCode::usage, "cuda_graphs", "forward was not passed to Troupe, so it can't be captured",
                "call rank.run_micro_batches(batches, forward) instead of rank.backward, or leave cuda_graphs out");
  }
  if (config_.use_amp && !has_autocast_) {
    throw Error(ErrorCode::usage, "use_amp", "use_amp is set, and this program's loop runs forward without autocast",
                "put `const auto autocast = rank.autocast();` before forward");
  }
  auto& compute = system_.compute();
  compute.expect_rate(schedule_.learning_rate(compute.steps_done()));
  compute.backward({loss, samples, weight});
  uncounted_.reset();
  times_.end_backward();
}

void LoopMicroBatches::run(const std::vector<std::shared_ptr<const Batch>>& batches,
                           const std::function<Loss(const Batch&)>& forward) {
  const auto wanted = static_cast<std::size_t>(config_.grad_accum_steps);
  if (batches.size() != wanted) {
    throw Error(ErrorCode::usage, "run_micro_batches",
                "it was given " + std::to_string(batches.size()) + " batches, and a step has " + std::to_string(wanted),
                "collect the loader's batches up to last_of_step");
  }
  auto& compute = system_.compute();
  forget_uncounted();  // the last of them was, as yet without its forward
  if (compute.uses_graphs()) {
    run_graphed(batches, forward);
  } else if (are_ordered()) {
    compute.run_micro_batches([&](std::int64_t m) {
      const auto& batch = *batches.at(static_cast<std::size_t>(m));
      std::optional<UncountedForward> uncounted;
      if (batch.weight == 0) uncounted.emplace(*model_);
      return MicroBatchLoss{forward(batch), static_cast<double>(batch.numel()), batch.weight};
    });
  } else {
    for (const auto& batch : batches) {
      begin(batch->numel(), batch->weight);
      backward(forward(*batch));
    }
  }
  times_.end_backward();
}

void LoopMicroBatches::run_graphed(const std::vector<std::shared_ptr<const Batch>>& batches,
                                   const std::function<Loss(const Batch&)>& forward) {
  for (const auto& batch : batches) {
    std::optional<UncountedForward> uncounted;
    if (batch->weight == 0) uncounted.emplace(*model_);
    system_.compute().run_graphed(graphed_micro_batch(*batch, forward));
  }
}

}  // namespace troupe
