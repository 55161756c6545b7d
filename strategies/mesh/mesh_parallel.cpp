#include "strategies/mesh/mesh_parallel.hpp"

#include <algorithm>
#include <utility>

#include "actors/rank/sharded_dtypes.hpp"
#include "strategies/mesh/device_checks.hpp"
#include "strategies/mesh/sharded_mesh.hpp"
#include "strategies/mesh/stage_balance.hpp"
#include "tensor_io/kernels/gradient_clip.hpp"
#include "tensor_io/layers/deferred_init.hpp"

namespace troupe {
namespace {

Mesh mesh_of(const StrategyContext& context) {
  return parse_mesh(context.options.mesh, context.world_size,
                    context.options.strategy == "tensor_parallel" ? "tp" : "pp");
}

void refuse_options(const StrategyOptions& options, const Mesh& mesh) {
  if (options.comm_hook != "none") {
    throw Error(ErrorCode::usage, "comm_hook",
                "'" + options.comm_hook + "' works on ddp's buckets, which " + options.strategy + " does not have",
                "leave it at none");
  }
  if (options.sync_batchnorm) {
    throw Error(ErrorCode::usage, "sync_batchnorm", "it would wait for ranks that run another stage or micro-batch",
                "leave it off with " + options.strategy);
  }
  if (mesh.fsdp == 1) refuse_sharded_dtypes(options, options.strategy);
  if (options.pipeline_chunks > 1 && mesh.pp == 1)
    throw Error(ErrorCode::usage, "pipeline_chunks", "the mesh " + mesh.to_string() + " has no pipeline",
                "set it to 1, or pp above 1");
  if (options.sequence_parallel && mesh.tp == 1)
    throw Error(ErrorCode::usage, "sequence_parallel", "the mesh " + mesh.to_string() + " shares no layers",
                "leave it off, or set tp above 1");
}

}  // namespace

MeshParallel::MeshParallel(StrategyContext context) : context_(std::move(context)) {
  const auto& options = context_.options;
  mesh_ = mesh_of(context_);
  place_ = mesh_.place_of(context_.rank);
  refuse_options(options, mesh_);
  if (mesh_.tp > 1) plan_ = parse_tensor_plan(options.tensor_plan);  // a program's plan is for all meshes
  if (mesh_.tp > 1 && plan_.empty()) {
    throw Error(ErrorCode::usage, "tensor_plan",
                "the mesh " + mesh_.to_string() + " shares layers, and no plan says which",
                "name them, as in layers.*.up: column, layers.*.down: row");
  }
}

StrategyCapabilities MeshParallel::capabilities() {
  auto all = own_capabilities();
  if (mesh_.pp == 1) all.refuse<MicroBatchOrder>("has no pipeline");
  return all;
}

void MeshParallel::attach(std::shared_ptr<torch::nn::Module> model) {
  model_ = std::move(model);
  materialize(*model_, context_.program_communicator->device());
  parameters_.collect(*model_, [this](const at::Tensor& parameter) { return context_.trains(parameter); });
  agree_on_layout(parameters_.layout(), *context_.program_communicator);
  layout_ = layout_hash(parameters_.layout());
  if (!context_.newcomer) broadcast_tensors(parameters_.held(), *context_.program_communicator, "parameters");
  buffers_ = std::make_unique<FlatBuffers>(*model_);
  if (!context_.newcomer) buffers_->broadcast(*context_.program_communicator);
  groups_ = make_mesh_groups(context_, mesh_);
  parameters_.share(
      share_layers(*model_, plan_, {groups_.tp, context_.options.sequence_parallel}, /*cut_values=*/true));
  if (mesh_.pp > 1) {
    pipeline_ = std::make_unique<RankPipeline>(*model_, device(), cut_, context_.options.pipeline_schedule);
    cut_ = StageCut(pipeline_->blocks(), mesh_.pp, static_cast<int>(context_.options.pipeline_chunks));
    pipeline_->connect(context_, *groups_.pp);
    parameters_.find_blocks(cut_);
    for (const auto& item : model_->named_buffers()) {
      if (cut_.block_of(item.key()) < 0)
        throw mesh_refused("buffer " + item.key() + " is outside of all blocks, where several stages would change it",
                           "move it into a block");
    }
  }
  agree_on_cut();
}

void MeshParallel::rejoin(StrategyContext context) {
  const auto ranks = mesh_.ranks();
  context_ = std::move(context);
  if (context_.world_size != ranks) {
    throw Error(ErrorCode::state_lost, "recovery",
                "the mesh " + mesh_.to_string() + " needs " + std::to_string(ranks) + " ranks, and " +
                    std::to_string(context_.world_size) + " are left",
                "start again with --resume auto, on as many ranks as before or with another mesh");
  }
  place_ = mesh_.place_of(context_.rank);
  agree_on_layout(parameters_.layout(), *context_.program_communicator);
  if (pipeline_) pipeline_->disconnect();
  groups_ = make_mesh_groups(context_, mesh_);
  if (pipeline_) pipeline_->connect(context_, *groups_.pp);
  share_layers(*model_, plan_, {groups_.tp, context_.options.sequence_parallel}, /*cut_values=*/false);
  agree_on_cut();
}

// Newcomers take the others' cut; in the job's first generation it is made here, unless costs are to be measured.
void MeshParallel::agree_on_cut() {
  const auto cuts = context_.program_communicator->all_gather_bytes(order_text(cut_.borders()), "stages");
  const auto known = std::find_if(cuts.begin(), cuts.end(), [](const auto& text) { return !text.empty(); });
  if (known != cuts.end()) {
    if (cut_.is_cut()) return;
    cut_.cut_at(order_of_text(*known));
    take_stages();
    return;
  }
  const auto& costs = context_.options.pipeline_costs;
  if (mesh_.pp == 1) {
    cut_.cut_at({0, 0});
    take_stages();
  } else if (costs == "measured") {
    if (!gradients_) hold_parameters();
  } else if (costs == "parameters") {
    cut_by({});
  } else {
    cut_by(parse_costs(costs, static_cast<std::size_t>(cut_.blocks())));
  }
}

// Empty costs: by the number of parameters.
void MeshParallel::cut_by(const std::vector<double>& costs) {
  cut_.cut_by(costs.empty() ? parameters_.numel_by_block(cut_) : costs);
  take_stages();
}

void MeshParallel::take_stages() {
  if (mesh_.pp > 1) parameters_.release_other_stages(cut_, place_.pp);
  hold_parameters();
}

void MeshParallel::hold_parameters() { gradients_.emplace(parameters_.all(), device()); }

NamedTensors MeshParallel::replicated_tensors() {
  auto tensors = parameters_.held();
  for (const auto& item : model_->named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

void MeshParallel::set_rollback_point() {
  parameters_.forget_wholes();
  buffers_->begin();
}

void MeshParallel::begin_step(std::int64_t step) {
  step_ = step;
  groups_.set_step(step);
  if (pipeline_) pipeline_->set_step(step);
  parameters_.clear_uses();
  clear_gradients();
}

void MeshParallel::clear_gradients() {
  gradients_->all().zero_();
  gradients_->show();
}

void MeshParallel::begin_backward(bool, double weight) {
  parameters_.mark_uses(weight != 0);
  if (weight == 0) gradients_->hide();  // 0 times infinity is NaN
}

void MeshParallel::end_backward() {
  if (!parameters_.mark_uses(true)) gradients_->show();
}

void MeshParallel::measure(MicroBatches& work) {
  at::Tensor costs;
  {
    torch::NoGradGuard no_grad;
    costs = pipeline_->measure(work);
    buffers_->roll_back();
  }
  context_.program_communicator->all_reduce(costs, ReduceOp::sum, "costs of blocks");
  cut_by(std::vector<double>(costs.data_ptr<double>(), costs.data_ptr<double>() + costs.numel()));
  begin_step(step_);
}

void MeshParallel::run_micro_batches(MicroBatches& work) {
  if (!cut_.is_cut()) measure(work);
  const auto& instructions = pipeline_->begin_run(work.count());
  begin_backward(/*synchronise=*/false, 1);
  for (const auto& instruction : instructions) {
    if (&instruction == &instructions.back())
      begin_backward(/*synchronise=*/true, 1);  // what it completes need not wait for the end
    for (const auto& weight : pipeline_->run(instruction, work)) {
      parameters_.mark_used(weight);
      weight_arrived(weight);
    }
  }
  end_backward();
  pipeline_->finish_run();
}

std::chrono::nanoseconds MeshParallel::time_waited() const {
  return (pipeline_ ? pipeline_->time_waited() : std::chrono::nanoseconds(0)) +
         (groups_.tp ? groups_.tp->ledger().time_inside() : std::chrono::nanoseconds(0));
}

bool MeshParallel::evaluate(const std::function<void()>& forward) {
  if (mesh_.pp == 1) {
    forward();
    return place_.tp == 0;
  }
  if (!cut_.is_cut()) cut_by({});
  return pipeline_->evaluate(forward) && place_.tp == 0;
}

std::uint64_t MeshParallel::step_hash() const {
  return layout_ ^ std::hash<std::string>()(mesh_.to_string() + " " + order_text(cut_.borders()));
}

GradientSummary MeshParallel::reduce_gradients() {
  GradientSummary summary;
  summary.layout_hash = step_hash();
  summary.used = parameters_.used();
  if (device().is_cpu()) summary.not_finite_parameter = find_not_finite();
  const auto& gradients = *gradients_;
  if (mesh_.tp > 1) {
    for (std::size_t i = 0; i < gradients.views().size(); ++i) {
      if (parameters_.all()[i].partial && gradients.views()[i].defined())
        groups_.tp->all_reduce(gradients.views()[i].view(-1), ReduceOp::sum, "gradients of one's own tokens");
    }
  }
  if (mesh_.pp > 1 && gradients.outside_of_blocks().numel() > 0)
    groups_.pp->all_reduce(gradients.outside_of_blocks(), ReduceOp::sum, "gradients outside of blocks");
  if (mesh_.dp > 1 && gradients.all().numel() > 0) groups_.dp->all_reduce(gradients.all(), ReduceOp::avg, "gradients");
  if (context_.options.broadcast_buffers && mesh_.dp > 1) buffers_->stage(*groups_.dp);
  summary.device_checks = checks_over_ranks(counted_gradients(), *context_.program_communicator);
  return summary;
}

std::vector<at::Tensor> MeshParallel::counted_gradients() const {
  std::vector<at::Tensor> counted;
  for (std::size_t i = 0; i < gradients_->views().size(); ++i) {
    const auto& gradient = gradients_->views()[i];
    if (gradient.defined() && place_.dp == 0 && counts(parameters_.all()[i])) counted.push_back(gradient);
  }
  return counted;
}

double MeshParallel::gradient_norm() {
  double mine = 0;
  for (const auto& gradient : counted_gradients()) mine += sum_of_squares(gradient);
  return norm_over_ranks(mine, *context_.program_communicator);
}

void MeshParallel::scale_gradients(double factor) { gradients_->all().mul_(factor); }

void MeshParallel::end_step(const std::vector<bool>& used, bool, bool commit) {
  gradients_->show(used);
  commit ? buffers_->commit() : buffers_->roll_back();
}

void MeshParallel::roll_back() {
  abandon_run();
  if (gradients_) gradients_->all().zero_();
  buffers_->roll_back();
}

std::optional<ReplicaGroup> MeshParallel::replica_group() const {
  return ReplicaGroup{groups_.dp, mesh_.replicas_of(context_.rank)};
}

void MeshParallel::shard_optimizer(Optimizer& optimizer) {
  if (mesh_.pp == 1 ? mesh_.tp == 1 : !cut_.is_cut()) return;
  if (!placed_.insert(optimizer.id()).second) return;
  optimizer.replace_parameters([&](const at::Tensor& parameter) {
    const auto index = parameters_.index_of(parameter);
    if (!index) {
      throw Error(ErrorCode::usage, "optimizer", "it holds a parameter that the distributed model does not have",
                  "construct it from the model's parameters");
    }
    return parameters_.all()[*index].own ? parameter : at::empty({0}, at::device(device()));
  });
}

std::string MeshParallel::describe() const {
  const auto text = name() + ": mesh " + mesh_.to_string();
  return mesh_.pp == 1 ? text : text + ", " + context_.options.pipeline_schedule + ", " + cut_.describe();
}

void register_mesh_parallel() {
  const auto factory = [](StrategyContext context) -> std::unique_ptr<Strategy> {
    if (mesh_of(context).fsdp > 1) return std::make_unique<ShardedMesh>(std::move(context));
    return std::make_unique<MeshParallel>(std::move(context));
  };
  register_strategy(
      "pipeline",
      "ranks run the model's blocks one after the other, micro-batch by micro-batch (mesh, pipeline_schedule)",
      factory);
  register_strategy("tensor_parallel", "ranks share the layers that tensor_plan names (mesh)", factory);
}

}  // namespace troupe
