#include "strategies/mesh/sharded_mesh.hpp"

#include <algorithm>

#include "actors/strategy/late_voting.hpp"
#include "strategies/mesh/device_checks.hpp"

namespace troupe {
namespace {

void refuse_shard_options(const StrategyOptions& options, const Mesh& mesh) {
  const auto& mode = options.fsdp_mode;
  if (mode != "full_shard" && mode != "shard_grad_op") {
    throw Error(
        ErrorCode::usage, "fsdp_mode",
        "'" + mode + "' does not fit the mesh " + mesh.to_string() + ", which already says how the state is sharded",
        "set it to full_shard or shard_grad_op; dp replicates the shards");
  }
  if (options.fsdp_shard_size != 0 && options.fsdp_shard_size != mesh.fsdp) {
    throw Error(ErrorCode::usage, "fsdp_shard_size",
                std::to_string(options.fsdp_shard_size) + " does not fit the mesh " + mesh.to_string(), "leave it out");
  }
  if (mesh.pp > 1 && options.fsdp_sync_micro_batches) {
    throw Error(ErrorCode::usage, "fsdp_sync_micro_batches",
                "a pipeline has several micro-batches in flight, and reduces their gradients after the last one",
                "leave it off, or set pp to 1");
  }
  if (options.param_dtype != "float32")
    throw Error(ErrorCode::usage, "param_dtype", "a mesh trains float32 parameters",
                "leave it at float32; use_amp computes in bf16");
  if (mesh.pp > 1 && options.pipeline_costs == "measured") {
    throw Error(ErrorCode::usage, "pipeline_costs",
                "'measured' runs all blocks on each rank, but the shards are cut before the first step",
                "set it to parameters, or to a cost for each block");
  }
}

ShardedMode mode_of(const StrategyOptions& options, const Mesh& mesh) {
  ShardedMode mode{.name = options.fsdp_mode};
  mode.gathers_units = true;
  mode.keep_whole_gradients = mode.keeps_units = mesh.pp > 1;
  mode.reshard_after_forward = mesh.pp == 1 && mode.name == "full_shard";
  mode.has_replicas = mesh.dp > 1;
  return mode;
}

}  // namespace

ShardedMesh::ShardedMesh(StrategyContext context) : MeshParallel(std::move(context)) {
  refuse_shard_options(context_.options, mesh_);
}

// The job as the ranks with the same part of the model are one. Collective.
StrategyContext ShardedMesh::make_part() {
  const int color = place_.pp * mesh_.tp + place_.tp;
  part_ = split_off(context_, *context_.program_communicator, color, "part");
  part_buckets_ = split_off(context_, *context_.gradient_communicator, color, "buckets of part");
  auto part = context_;
  part.program_communicator = part_;
  part.gradient_communicator = part_buckets_;
  part.rank = part_->rank();
  part.world_size = part_->world_size();
  part.options.strategy = "fsdp";
  part.options.fsdp_shard_size = mesh_.fsdp;
  part.hosts.clear();  // replicas are those of fsdp_shard_size, wherever the ranks are
  return part;
}

StrategyCapabilities ShardedMesh::capabilities() {
  auto all = MeshParallel::capabilities();
  all.refuse<LateVoting>("waits for the vote");
  return shards_ ? all.over(shards_->capabilities()) : all;
}

void ShardedMesh::attach(std::shared_ptr<torch::nn::Module> model) {
  MeshParallel::attach(std::move(model));
  if (context_.newcomer) restore();
}

void ShardedMesh::hold_parameters() {
  ShardedPart part{parameters_.elsewhere(), {}, true};
  for (const auto& parameter : parameters_.all()) {
    if (mesh_.pp > 1 && parameter.block < 0) part.apart.insert(parameter.name);
  }
  buffers_.reset();  // they go along with the shards
  shards_ = std::make_unique<ShardedStrategy>(make_part(), mode_of(context_.options, mesh_), std::move(part));
  shards_->place(model_);
  for (const auto& parameter : shards_->parameters().parameters())
    outer_.push_back(static_cast<std::int32_t>(parameters_.index_of(parameter.name).value()));
}

void ShardedMesh::rejoin(StrategyContext context) {
  MeshParallel::rejoin(std::move(context));
  shards_->replace(make_part());
  restore();
}

// Shards are numbered as the ranks of one copy (dp) would be: another copy's serves as well.
Mesh ShardedMesh::one_copy() const {
  auto one = mesh_;
  one.dp = 1;
  return one;
}

void ShardedMesh::restore() {
  shards_->forget_restored_moments();
  snapshots_.restore(*context_.program_communicator, [this](const ShardCopy& copy) {
    const auto place = one_copy().place_of(copy.held.shard);
    if (place.tp == place_.tp && place.pp == place_.pp) shards_->place_copy(place.fsdp, copy);
  });
  shards_->publish_state();
}

void ShardedMesh::take_snapshot(Optimizer& optimizer, std::uint64_t generation, std::int64_t step,
                                const std::string& note) {
  const auto one = one_copy();
  const HeldShard held{generation, step, one.rank_at({0, place_.tp, place_.pp, place_.fsdp}), one.ranks()};
  snapshots_.exchange(ShardPacker(held, note, shards_->snapshot_tensors(optimizer)), context_.hosts,
                      *context_.program_communicator);
}

void ShardedMesh::set_rollback_point() {
  parameters_.forget_wholes();
  shards_->set_rollback_point();
}

void ShardedMesh::begin_step(std::int64_t step) {
  MeshParallel::begin_step(step);
  part_->ledger().set_step(step);
  shards_->begin_step(step);
}

void ShardedMesh::begin_evaluation() {
  MeshParallel::begin_evaluation();
  shards_->begin_evaluation();
}

GradientSummary ShardedMesh::reduce_gradients() {
  auto summary = shards_->reduce_gradients();
  summary.layout_hash = step_hash();
  summary.not_finite_parameter = outer(summary.not_finite_parameter);
  summary.used = parameters_.used();
  for (const auto& slice : shards_->parameters().slices()) {
    if (parameter_at(slice.place.parameter).partial && slice.gradient.defined())
      groups_.tp->all_reduce(slice.gradient, ReduceOp::sum, "gradients of one's own tokens");
  }
  if (mesh_.pp > 1) {
    for (const auto& flat : shards_->parameters().flats()) {
      if (flat.gradient.defined() && parameter_at(flat.plan->slots.front().parameter).block < 0)
        groups_.pp->all_reduce(flat.gradient, ReduceOp::sum, "gradients outside of blocks");
    }
  }
  summary.device_checks = checks_over_ranks(counted_gradients(), *context_.program_communicator);
  return summary;
}

std::vector<at::Tensor> ShardedMesh::counted_gradients() const {
  std::vector<at::Tensor> counted;
  for (const auto& slice : shards_->parameters().slices()) {
    if (slice.gradient.defined() && place_.dp == 0 && counts(parameter_at(slice.place.parameter)))
      counted.push_back(slice.gradient);
  }
  return counted;
}

void ShardedMesh::end_step(const std::vector<bool>& used, bool rebuild, bool commit) {
  std::vector<bool> own;
  for (const auto p : outer_) own.push_back(used[static_cast<std::size_t>(p)]);
  shards_->end_step(own, rebuild, commit);
}

void ShardedMesh::roll_back() {
  abandon_run();
  shards_->roll_back();
}

std::string ShardedMesh::describe() const { return MeshParallel::describe() + "; " + shards_->describe(); }

}  // namespace troupe
