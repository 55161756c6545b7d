#include "actors/compute/micro_batch_graphs.hpp"

#include <utility>

#include "tensor_io/base/fault_point.hpp"

namespace troupe {

std::unique_ptr<MicroBatchGraphs> MicroBatchGraphs::make(ComputeCore& core, StepLosses& losses, LateVote* late) {
  const auto device = core.device();
  if (!core.options.training.cuda_graphs || device.is_cpu()) return nullptr;
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::usage, "cuda_graphs", why, "leave it out"); };
  const auto able = core.strategy->capabilities();
  if (able.get<GraphCapture>() == nullptr)
    refuse("strategy " + core.strategy->name() + " " +
           able.refusal<GraphCapture>("does more in forward and backward than launch kernels"));
  if (core.options.training.activation_checkpointing != "none")
    refuse("activation_checkpointing restores the state of the random number generator in backward");
  if (!has_device_graphs(device.type())) refuse("device " + device.str() + " does not support graphs");
  return std::make_unique<MicroBatchGraphs>(core, losses, late);
}

MicroBatchGraphs::MicroBatchGraphs(ComputeCore& core, StepLosses& losses, LateVote* late)
    : core_(core), losses_(losses), late_(late), stream_(DeviceStream::from_pool(core.device(), false)) {}

MicroBatchGraphs::Turn MicroBatchGraphs::next(const GraphedMicroBatch& micro_batch, bool first, bool last) {
  const auto* capture = core_.capability<GraphCapture>();
  kind_ = graph_kind(micro_batch.inputs, core_.model->is_training(), first, last) + micro_batch.kind + " " +
          std::to_string(capture->gradients_so_far());
  // One that counts nothing (the rank has run out of data) is rare, and hands on other gradients.
  if (micro_batch.weight == 0) return {GraphKinds::Turn::run, nullptr};
  std::erase_if(old_, [](const Old& old) { return old.over.done(); });
  if (const auto layout = capture->captured_layout_version(); std::exchange(layout_, layout) != layout) forget();
  const auto what = kinds_.next(kind_);
  return {what, what == GraphKinds::Turn::run ? nullptr : &graphs_[kind_]};
}

void MicroBatchGraphs::forget() {
  if (!graphs_.empty()) {
    old_.push_back({std::exchange(graphs_, {}), DeviceEvent(stream_.device())});
    old_.back().over.record(DeviceStream::current(stream_.device()));
  }
  kinds_.forget();
}

void MicroBatchGraphs::run(const Turn& turn, const GraphedMicroBatch& micro_batch, const ForwardPosition& position) {
  if (turn.what == GraphKinds::Turn::write) {
    try {
      write(*turn.graph, micro_batch);
    } catch (...) {
      (void)core_.capability<GraphCapture>()->end_capture();
      graphs_.erase(kind_);
      kinds_.drop(kind_);
      throw;
    }
  }
  replay(*turn.graph, micro_batch, position);
}

void MicroBatchGraphs::write(StepGraph& graph, const GraphedMicroBatch& micro_batch) {
  const auto device = core_.device();
  for (const auto& input : micro_batch.inputs) {
    if (input.device() != device) {
      core_.refuse("cuda_graphs",
                   "a batch is on " + input.device().str() + ", the graph's memory is on " + device.str(),
                   "take it from rank.loader, or move it to rank.device()");
    }
    graph.inputs.push_back(at::empty_like(input));
  }
  graph.factor = at::empty({}, at::TensorOptions().dtype(at::kDouble).device(device));
  graph.dropout_key = at::empty({}, at::TensorOptions().dtype(at::kLong).device(device));
  graph.graph = make_device_graph(device);
  try {
    const StreamBetween place(stream_);  // LibTorch fills what random numbers go by, which a replay may still read
    CaptureScope writing(*graph.graph, stream_);
    core_.capability<GraphCapture>()->begin_capture(*graph.graph);
    const DropoutKeyInMemory key(graph.dropout_key);
    const auto result = micro_batch.forward(graph.inputs);
    losses_.check(result);
    if (result.value.is_cpu() || (!result.correct.on_device().defined() && result.correct.value() != 0)) {
      throw Error(ErrorCode::usage, "cuda_graphs", "the loss, or the count of correct samples, is a number on the host",
                  "keep both on the device as tensors: each replay computes them again, and the vote reads them");
    }
    start_of_backward(result.value, graph.factor).backward();
    core_.strategy->end_backward();
    graph.host_part = core_.capability<GraphCapture>()->end_capture();
    graph.loss = result.value.detach();
    graph.correct = result.correct.on_device();
    writing.end();
  } catch (const Error& error) {
    throw Error(core_.complete(error.report()));
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("captur") == std::string::npos) throw;  // CUDA's own word for it
    core_.refuse("cuda_graphs",
                 "forward or backward does something that a graph can't capture: " + text.substr(0, text.find('\n')),
                 "remove whatever reads a value (item(), a print, a branch on it) or copies from the host, or leave "
                 "cuda_graphs out");
  }
}

// The factor lies in the device's memory, in f64: the host's next to it, or what the late vote has there.
at::Tensor MicroBatchGraphs::start_of_backward(const at::Tensor& loss, const at::Tensor& factor) const {
  if (late_) {
    const auto narrow = DeviceLossScale::factor_of(loss, factor);
    return loss.to(narrow.scalar_type()) * narrow;
  }
  const auto dtype = loss.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return loss.to(dtype) * factor.to(dtype);
}

void MicroBatchGraphs::replay(StepGraph& graph, const GraphedMicroBatch& micro_batch, const ForwardPosition& position) {
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i)
    graph.inputs[i].copy_(micro_batch.inputs[i], /*non_blocking=*/true);
  if (late_) {
    graph.factor.copy_(late_->start_of_replay(micro_batch.weight));
  } else {
    graph.factor.fill_(losses_.backward_factor({graph.loss, micro_batch.samples, micro_batch.weight}));
  }
  graph.dropout_key.fill_(static_cast<std::int64_t>(dropout_key(position)));
  graph.graph->replay();
  core_.capability<GraphCapture>()->on_replay(*graph.host_part);
  // Copies: the next replay writes there again, and the vote may be later.
  const auto out = [](const at::Tensor& value) { return value.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true); };
  const auto correct = graph.correct.defined() ? CorrectSamples(out(graph.correct)) : CorrectSamples();
  losses_.count({{out(graph.loss), correct}, micro_batch.samples, micro_batch.weight});
}

}  // namespace troupe
