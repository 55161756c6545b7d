// Compute's micro-batches as graphs of the device (cuda_graphs): the kernels of forward and backward are launched at
// once, and all that the host has to do with a step stays where it is: the reducer launches the collectives, behind
// marks that the graph sets.
#include <cmath>
#include <utility>

#include "actors/compute/compute.hpp"
#include "actors/compute/step_graphs.hpp"
#include "actors/strategy/graph_capture.hpp"
#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/base/trace.hpp"

namespace troupe {

std::size_t Compute::graphs_written() const noexcept { return graphs_ ? graphs_->written() : 0; }

std::unique_ptr<StepGraphs> Compute::make_graphs() const {
  const auto device = services_.program_lane->device();
  if (!options_.training.cuda_graphs || device.is_cpu()) return nullptr;
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::usage, "cuda_graphs", why, "leave it out"); };
  const auto able = strategy_->capabilities();
  if (able.get<GraphCapture>() == nullptr)
    refuse("strategy " + strategy_->name() + " " +
           able.refusal<GraphCapture>("does more in forward and backward than launch kernels"));
  if (options_.training.activation_checkpointing != "none")
    refuse("activation_checkpointing puts back the state of random numbers in backward");
  if (!has_device_graphs(device.type())) refuse("a device like " + device.str() + " has no graphs");
  return std::make_unique<StepGraphs>(device);
}

void Compute::run_graphed(const GraphedMicroBatch& micro_batch) {
  check_micro_batch_is_due();
  seed_forward();
  const bool first = micro_batch_ == 0, last = micro_batch_ + 1 == options_.training.grad_accum_steps;
  if (first) begin_votes();  // which may lay out other buckets
  const auto kind = graph_kind(micro_batch.inputs, model_->is_training(), first, last) + micro_batch.kind + " " +
                    std::to_string(capability<GraphCapture>()->gradients_so_far());
  StepGraphs::Turn turn{GraphKinds::Turn::run, nullptr};
  // One that counts nothing (the rank has run out of data) is rare, and hands on other gradients.
  if (micro_batch.weight != 0) turn = graphs_->next(kind, capability<GraphCapture>()->captured_layout_version());
  if (turn.what == GraphKinds::Turn::run) {
    const StreamBetween place(graphs_->stream);
    const auto loss = micro_batch.forward(micro_batch.inputs);
    check_loss(loss);
    return backward_begun({loss, micro_batch.samples, micro_batch.weight});
  }
  fault_point("forward", steps_done());
  strategy_->begin_backward(last, micro_batch.weight);
  if (turn.what == GraphKinds::Turn::write) {
    try {
      write(*turn.graph, micro_batch);
    } catch (...) {
      (void)capability<GraphCapture>()->end_capture();
      graphs_->drop(kind);
      throw;
    }
  }
  replay(*turn.graph, micro_batch);
  trace_since(mark_.time_since_epoch().count(), "forward and backward");
  fault_point("backward", steps_done());
  end_section(DeviceTimes::Part::forward);
  ++micro_batch_;
  move_on();
}

void Compute::write(StepGraph& graph, const GraphedMicroBatch& micro_batch) {
  const auto device = services_.program_lane->device();
  for (const auto& input : micro_batch.inputs) {
    if (input.device() != device) {
      throw Error(complete({ErrorCode::usage,
                            -1,
                            {},
                            -1,
                            "cuda_graphs",
                            "a batch is on " + input.device().str() + ", the graph's memory on " + device.str(),
                            "take it from rank.loader, or move it to rank.device()"}));
    }
    graph.inputs.push_back(at::empty_like(input));
  }
  graph.factor = at::empty({}, at::TensorOptions().dtype(at::kDouble).device(device));
  graph.dropout_key = at::empty({}, at::TensorOptions().dtype(at::kLong).device(device));
  graph.graph = make_device_graph(device);
  try {
    const StreamBetween place(
        graphs_->stream);  // LibTorch fills what random numbers go by, which a replay may still read
    CaptureScope writing(*graph.graph, graphs_->stream);
    capability<GraphCapture>()->begin_capture(*graph.graph);
    const DropoutKeyInMemory key(graph.dropout_key);
    const auto result = micro_batch.forward(graph.inputs);
    check_loss(result);
    if (result.value.is_cpu() || (!result.correct.on_device().defined() && result.correct.value() != 0)) {
      throw Error(ErrorCode::usage, "cuda_graphs",
                  "the loss, or how many samples were right, is a number of the host's",
                  "leave both on the device, as tensors: a graph computes them anew, and the vote reads them");
    }
    start_of_written_backward(result.value, graph.factor).backward();
    strategy_->end_backward();
    graph.host_part = capability<GraphCapture>()->end_capture();
    graph.loss = result.value.detach();
    graph.correct = result.correct.on_device();
    writing.end();
  } catch (const Error& error) {
    throw Error(complete(error.report()));
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("captur") == std::string::npos) throw;  // CUDA's own word for it
    throw Error(complete(
        {ErrorCode::usage,
         -1,
         {},
         -1,
         "cuda_graphs",
         "forward or backward does what can't be a graph of the device: " + text.substr(0, text.find('\n')),
         "take out of it what reads a value (item, a print, a branch on one) or copies from the host, or leave "
         "cuda_graphs out"}));
  }
}

// The factor lies in the device's memory, in f64: the host's next to it, or what the late vote has there.
at::Tensor Compute::start_of_written_backward(const at::Tensor& loss, const at::Tensor& factor) const {
  if (late_) {
    const auto narrow = DeviceLossScale::factor_of(loss, factor);
    return loss.to(narrow.scalar_type()) * narrow;
  }
  const auto dtype = loss.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return loss.to(dtype) * factor.to(dtype);
}

void Compute::replay(StepGraph& graph, const GraphedMicroBatch& micro_batch) {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i)
    graph.inputs[i].copy_(micro_batch.inputs[i], /*non_blocking=*/true);
  if (late_) {
    const bool poisoned = services_.status->poisoned.exchange(false);
    graph.factor.copy_(late_->scale.start(poisoned ? std::nan("") : micro_batch.weight,
                                          static_cast<double>(options_.training.grad_accum_steps)));
  } else {
    graph.factor.fill_(backward_factor({graph.loss, micro_batch.samples, micro_batch.weight}));
  }
  graph.dropout_key.fill_(static_cast<std::int64_t>(dropout_key(*position_)));
  graph.graph->replay();
  capability<GraphCapture>()->on_replay(*graph.host_part);
  // Copies: the next replay writes there again, and the vote may be later.
  const auto out = [](const at::Tensor& value) { return value.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true); };
  const auto correct = graph.correct.defined() ? CorrectSamples(out(graph.correct)) : CorrectSamples();
  count_loss({{out(graph.loss), correct}, micro_batch.samples, micro_batch.weight});
}

}  // namespace troupe
