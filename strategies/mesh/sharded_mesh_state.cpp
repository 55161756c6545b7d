// Shards of the parts of a model on a mesh as checkpoints have them: each parameter once, whole, under its full name.
#include "strategies/mesh/partitioned_state.hpp"
#include "strategies/mesh/sharded_mesh.hpp"
#include "strategies/sharded/sharded_state.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"

namespace troupe {

// ShardedStrategy's parts are of what this rank's group holds: they are moved to where that lies in the whole. What
// several groups have alike one of them writes. A part of a stacked layer would be several runs of the whole, and a
// file has each tensor once: those are put together.
std::vector<TensorPart> ShardedMesh::state_parts(Optimizer& optimizer, int, int) {
  torch::NoGradGuard no_grad;
  std::vector<TensorPart> parts;
  for (auto& part : shards_->state_parts(optimizer, part_->rank(), part_->world_size())) {
    const auto index = parameters_.index_of(parameter_in(part.name));
    if (!index) {  // a buffer
      if (place_.tp == 0 && has_buffer(parameter_in(part.name))) parts.push_back(std::move(part));
      continue;
    }
    const auto& parameter = parameters_.all()[*index];
    const auto& cut = parameter.cut;
    const bool is_cut = cut.dim >= 0 && !part.global_shape.empty();
    if (!counts(parameter) || (!is_cut && place_.tp != 0) || (is_cut && cut.stack > 1)) continue;
    if (is_cut) {
      const auto dim = static_cast<std::size_t>(cut.dim);
      part.global_shape = parameter.sizes;
      part.offsets[dim] += cut.runs(parameter.sizes[dim], part.name).front().whole;
    }
    parts.push_back(std::move(part));
  }
  const auto state = optimizer.state();
  const std::map<std::string, at::Tensor> moments(state.begin(), state.end());
  const auto types = moment_types(optimizer, shards_->parameters().group());
  int turn = 0;
  for (std::size_t p = 0; p < outer_.size(); ++p) {
    const auto& parameter = parameter_at(static_cast<std::int32_t>(p));
    if (parameter.cut.stack > 1 && counts(parameter)) add_stacked_parts(p, moments, types, turn++, parts);
  }
  return parts;
}

// Collective among the ranks of one copy with the same stage. The copies take turns, and in each the ranks of fsdp.
void ShardedMesh::add_stacked_parts(std::size_t p, const std::map<std::string, at::Tensor>& moments,
                                    const std::map<std::string, at::ScalarType>& types, int turn,
                                    std::vector<TensorPart>& parts) {
  if (turn % mesh_.dp != place_.dp) return;
  const bool writes = turn / mesh_.dp % mesh_.fsdp == place_.fsdp;
  auto& all = shards_->parameters();
  const auto& parameter = parameter_at(static_cast<std::int32_t>(p));
  const auto add = [&](const std::string& name, const at::Tensor& own, at::ScalarType dtype) {
    auto part = part_of_cut(name, gather_whole(p, own, dtype), parameter.sizes, parameter.cut, *groups_.tp);
    if (!writes) return;
    part.pieces.assign(1, part.pieces.front().clone());  // the whole goes
    parts.push_back(std::move(part));
  };
  const auto* slice = all.slice_at(p);
  add("model." + parameter.name, slice == nullptr ? at::Tensor() : slice->leaf.detach().view(-1),
      all.parameters()[p].dtype);
  // A rank without a slice of it has no moments.
  for (const auto& [name, type] : entries_of(types, parameter.name)) {
    const auto found = moments.find(name);
    add("optimizer." + name, found == moments.end() ? at::Tensor() : found->second.view(-1), type);
  }
}

// All of this rank's part of a parameter, or of a moment of it, of which it has the slice `own`. Collective over the
// shards' group.
at::Tensor ShardedMesh::gather_whole(std::size_t p, const at::Tensor& own, at::ScalarType dtype) {
  auto& all = shards_->parameters();
  auto& group = all.group();
  const auto& parameter = all.parameters()[p];
  auto whole = at::empty({parameter.tensor.numel()}, at::device(all.device()).dtype(dtype));
  for (int rank = 0; rank < group.world_size(); ++rank) {
    for (const auto& slice : slices_of(all.plan(), rank)) {
      if (static_cast<std::size_t>(slice.parameter) != p) continue;
      const auto place = whole.narrow(0, slice.begin, slice.numel);
      if (rank == group.rank()) place.copy_(own);
      group.broadcast(place, rank, "parts of " + parameter.name);
    }
  }
  return whole.as_strided(parameter.sizes, parameter.strides);
}

void ShardedMesh::read_state(const StateReader& state, Optimizer& optimizer) {
  check_saved_model(state, parameters_, *model_);
  shards_->read_state(CutStateReader(state, parameters_.cuts(), parameters_.elsewhere()), optimizer);
}

}  // namespace troupe
