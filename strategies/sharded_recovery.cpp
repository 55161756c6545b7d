// Sharded state in copies: taken between steps, put together again for whatever ranks there are after a loss.
#include <algorithm>

#include "strategies/sharded.hpp"

namespace troupe {
namespace {

/// The first field of `name` up to a dot; `name` is what follows.
std::string next_field(std::string_view& name) {
  const auto dot = std::min(name.find('.'), name.size());
  std::string field(name.substr(0, dot));
  name.remove_prefix(std::min(dot + 1, name.size()));
  return field;
}

/// Elements that two ranges have in common, one of which begins at `begin` and is `from`, the other `to`.
void copy_common(std::int64_t from_begin, const at::Tensor& from, std::int64_t to_begin, const at::Tensor& to) {
  const auto begin = std::max(from_begin, to_begin), end = std::min(from_begin + from.numel(), to_begin + to.numel());
  if (begin < end) to.narrow(0, begin - to_begin, end - begin).copy_(from.narrow(0, begin - from_begin, end - begin));
}

}  // namespace

void Sharded::take_snapshot(Optimizer& optimizer, std::uint64_t generation, std::int64_t step, const std::string& note) {
  torch::NoGradGuard no_grad;
  const auto& flats = parameters_->flats();
  const auto& parameters = parameters_->parameters();
  NamedTensors tensors;
  for (std::size_t f = 0; f < flats.size(); ++f) tensors.emplace_back("flat." + std::to_string(f), flats[f].master);
  std::map<std::string, std::size_t> index;
  for (std::size_t p = 0; p < parameters.size(); ++p) index[parameters[p].name] = p;
  for (const auto& [name, value] : optimizer.state()) {
    const auto dot = name.rfind('.');
    const auto p = index.at(name.substr(0, dot));
    const auto* slice = parameters_->slice_at(p);
    if (slice != nullptr)
      tensors.emplace_back("moment." + std::to_string(p) + "." + std::to_string(slice->place.begin) + name.substr(dot), value);
  }
  if (group_->rank() == 0) {
    for (const auto& item : model_->named_buffers()) tensors.emplace_back("buffer." + item.key(), item.value());
  }
  snapshots_.exchange(ShardCopy::pack({generation, step, group_->rank(), group_->world_size()}, note, tensors), context_.hosts,
                      *context_.program_lane);
}

void Sharded::restore() {
  torch::NoGradGuard no_grad;
  restored_moments_.clear();
  restored_.reset();
  const auto plan = snapshots_.restore(*context_.program_lane, [this](const ShardCopy& copy) { place(copy); });
  if (!plan) {
    throw Error(ErrorCode::state_lost, "recovery", "a lost rank took its shard of the state with it, and no other rank has a copy",
                "start again with --resume latest; snapshot_every keeps copies");
  }
  parameters_->publish();
}

// What of another cut's shard is this rank's now. A flat parameter's elements have the same places in every cut.
void Sharded::place(const ShardCopy& copy) {
  restored_ = {copy.held.step, copy.note};
  const auto& parameters = parameters_->parameters();
  std::map<std::string, at::Tensor> buffers;
  for (const auto& item : model_->named_buffers()) buffers[item.key()] = item.value();
  for (const auto& [full_name, tensor] : copy.tensors) {
    std::string_view name = full_name;
    const auto kind = next_field(name);
    if (kind == "flat") {
      auto& flat = parameters_->flats().at(std::stoul(std::string(name)));
      copy_common(copy.held.shard * tensor.numel(), tensor, group_->rank() * flat.plan->shard_numel, flat.master);
    } else if (kind == "buffer") {
      buffers.at(std::string(name)).copy_(tensor);
    } else {
      const auto p = std::stoul(next_field(name));
      const auto begin = std::stoll(next_field(name));
      const auto* slice = parameters_->slice_at(p);
      if (slice == nullptr) continue;
      auto& moment = restored_moments_[parameters[p].name][std::string(name)];
      if (tensor.dim() == 0) {
        moment = tensor.clone();
        continue;
      }
      if (!moment.defined()) moment = at::zeros({slice->place.numel}, tensor.options());
      copy_common(begin, tensor.view(-1), slice->place.begin, moment);
    }
  }
}

}  // namespace troupe
