#include "strategies/mesh/rank_pipeline.hpp"

#include <optional>

#include "tensor_io/base/fault_point.hpp"
#include "tensor_io/layers/parallel_layers.hpp"

namespace troupe {

RankPipeline::RankPipeline(torch::nn::Module& model, c10::Device device, const StageCut& cut, std::string schedule)
    : runner_(model, device), cut_(cut), schedule_name_(std::move(schedule)) {
  if (schedule_name_ != "zero_bubble") return;
  for (const auto& module : model.modules()) {
    if (auto* linear = dynamic_cast<nn::LinearImpl*>(module.get())) linear->may_defer_weight(true);
  }
}

std::vector<std::string> RankPipeline::blocks() const {
  std::vector<std::string> names;
  for (const auto& block : runner_.blocks()) names.push_back(block.name);
  return names;
}

void RankPipeline::disconnect() {
  links_.reset();
  cells_.clear();
}

void RankPipeline::connect(const StrategyContext& context, Communicator& pipeline) {
  rank_ = pipeline.rank();
  ranks_ = pipeline.world_size();
  links_ = std::make_unique<StageLinks>(context, pipeline, cut_.chunks() > 1);
}

void RankPipeline::set_step(std::int64_t step) {
  step_ = step;
  links_->set_step(step);
}

const StageSchedule& RankPipeline::begin_run(int micro_batches) {
  if (schedule_.instructions.empty())
    schedule_ = RankSchedule(schedule_name_, {ranks_, micro_batches, cut_.chunks()}, rank_);
  (void)links_->take_waited();
  return schedule_.instructions;
}

std::vector<at::Tensor> RankPipeline::run(const StageInstruction& instruction, MicroBatches& work) {
  using Kind = StageInstruction::Kind;
  const int stage = cut_.stage_of(rank_, instruction.chunk), m = instruction.micro_batch;
  const std::pair key{instruction.chunk, m};
  if (instruction.kind == Kind::forward) {
    forward(cells_[key], stage, m, work);
    return {};
  }
  auto& cell = cells_.at(key);
  std::vector<at::Tensor> weights;
  if (instruction.kind == Kind::backward_weight) {
    weights = cell.weights->run();
  } else {
    if (instruction.kind == Kind::backward_input) cell.weights = std::make_unique<DeferredWeights>();
    backward(cell, stage, m);
  }
  if (instruction.kind != Kind::backward_input) cells_.erase(key);
  return weights;
}

at::Tensor RankPipeline::receive_input(int stage, int micro_batch) {
  if (stage == 0) return {};
  auto input = links_->receive(StageLinks::Way::activations, stage, micro_batch);
  if (at::isFloatingType(input.scalar_type())) input.requires_grad_(at::GradMode::is_enabled());
  return input;
}

void RankPipeline::forward(Cell& cell, int stage, int micro_batch, MicroBatches& work) {
  cell.input = receive_input(stage, micro_batch);
  runner_.begin(cut_.first_block(stage), cut_.end_block(stage), cell.input);
  try {
    cell.output = work.forward(micro_batch);
  } catch (const StageEnded&) {
    cell.output = runner_.output();
    fault_point("forward", step_);
    links_->send(StageLinks::Way::activations, stage + 1, micro_batch, cell.output);
  }
  runner_.end();
}

void RankPipeline::backward(Cell& cell, int stage, int micro_batch) {
  at::Tensor gradient;
  if (stage + 1 < cut_.stages()) gradient = links_->receive(StageLinks::Way::gradients, stage, micro_batch);
  if (cell.output.requires_grad()) {
    std::optional<DeferredWeights::Scope> scope;
    if (cell.weights) scope.emplace(*cell.weights);
    torch::autograd::backward({cell.output}, {gradient});
  }
  if (stage > 0) {
    links_->send(StageLinks::Way::gradients, stage - 1, micro_batch,
                 cell.input.grad().defined() ? cell.input.grad() : at::zeros_like(cell.input));
  }
  cell.output = cell.input = at::Tensor();
}

void RankPipeline::finish_run() {
  links_->finish();
  cells_.clear();
  waited_ += links_->take_waited();
}

void RankPipeline::abandon() {
  cells_.clear();
  try {
    runner_.end();
  } catch (const Error&) {  // a forward that was given up
  }
}

at::Tensor RankPipeline::measure(MicroBatches& work) {
  runner_.begin_measuring();
  work.try_forward(0);
  runner_.end();
  std::vector<double> times;
  for (const auto time : runner_.times()) times.push_back(static_cast<double>(time.count()));
  return at::tensor(times, at::kDouble);
}

bool RankPipeline::evaluate(const std::function<void()>& forward) {
  const int number = evaluations_++ % 1'000'000;
  bool ended = false;
  for (int chunk = 0; chunk < cut_.chunks(); ++chunk) {
    const int stage = cut_.stage_of(rank_, chunk);
    runner_.begin(cut_.first_block(stage), cut_.end_block(stage), receive_input(stage, number));
    try {
      forward();
      ended = true;
    } catch (const StageEnded&) {
      links_->send(StageLinks::Way::activations, stage + 1, number, runner_.output());
    }
    runner_.end();
  }
  links_->finish();
  return ended;
}

}  // namespace troupe
