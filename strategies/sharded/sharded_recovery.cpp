// Sharded state in copies: taken between steps, put together again for whatever ranks there are after a loss.
#include <algorithm>

#include "strategies/sharded/sharded_strategy.hpp"

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

// hybrid_shard: whether the ranks that stay are as many on each host, or a multiple of the size that is asked for.
bool make_groups_without(const std::vector<int>& leaving, const std::vector<std::string>& hosts, int size) {
  std::map<std::string, int> on_host;
  int staying = 0;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    if (std::find(leaving.begin(), leaving.end(), rank) != leaving.end()) continue;
    ++on_host[hosts[static_cast<std::size_t>(rank)]];
    ++staying;
  }
  if (size > 0) return staying % size == 0;
  return std::all_of(on_host.begin(), on_host.end(),
                     [&](const auto& host) { return host.second == on_host.begin()->second; });
}

}  // namespace

void ShardedStrategy::take_snapshot(Optimizer& optimizer, std::uint64_t generation, std::int64_t step,
                                    const std::string& note) {
  exchange_copies(optimizer, {{}, generation, step, note});
}

void ShardedStrategy::exchange_copies(Optimizer& optimizer, const Parting& parting) {
  snapshots_.exchange(ShardPacker({parting.generation, parting.step, group_->rank(), group_->world_size()},
                                  parting.note, snapshot_tensors(optimizer)),
                      context_.hosts, *context_.program_communicator, parting.leaving);
}

bool ShardedStrategy::hand_over(Optimizer& optimizer, const Parting& parting) {
  const auto size = static_cast<int>(context_.options.fsdp_shard_size);
  if (mode_.has_replicas && !make_groups_without(parting.leaving, context_.hosts, size)) return false;
  exchange_copies(optimizer, parting);
  return true;
}

NamedTensors ShardedStrategy::snapshot_tensors(Optimizer& optimizer) {
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
      tensors.emplace_back("moment." + std::to_string(p) + "." + std::to_string(slice->place.begin) + name.substr(dot),
                           value);
  }
  if (group_->rank() == 0) {  // the first one of a generation is taken when the step's forward has moved them
    for (const auto& [name, value] : buffers_->before()) tensors.emplace_back("buffer." + name, value);
  }
  return tensors;
}

void ShardedStrategy::restore() {
  torch::NoGradGuard no_grad;
  restored_moments_.clear();
  restored_.reset();
  snapshots_.restore(*context_.program_communicator, [this](const ShardCopy& copy) {
    restored_ = {copy.held.step, copy.note};
    place_copy(copy.held.shard, copy);
  });
  parameters_->publish();
}

void ShardedStrategy::place_copy(std::int32_t shard, const ShardCopy& copy) {
  torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : copy.tensors) {
    try {
      place_tensor(shard, name, tensor);
    } catch (const std::logic_error&) {
      throw Error(ErrorCode::bad_data, "the copy of a shard", "tensor '" + name + "' is not in this model");
    }
  }
}

// What of another cut's shard is this rank's now. A flat parameter's elements have the same places in every cut.
void ShardedStrategy::place_tensor(std::int32_t shard, std::string_view name, const at::Tensor& tensor) {
  const auto kind = next_field(name);
  if (kind == "flat") {
    auto& flat = parameters_->flats().at(std::stoul(std::string(name)));
    copy_common(shard * tensor.numel(), tensor, group_->rank() * flat.plan->shard_numel, flat.master);
    return;
  }
  if (kind == "buffer") {
    const auto buffers = model_->named_buffers();
    const auto* buffer = buffers.find(std::string(name));
    if (buffer == nullptr) throw std::out_of_range("no such buffer");
    at::Tensor(*buffer).copy_(tensor);
    return;
  }
  const auto& parameters = parameters_->parameters();
  const auto p = std::stoul(next_field(name));
  const auto begin = std::stoll(next_field(name));
  const auto& parameter = parameters.at(p);
  const auto* slice = parameters_->slice_at(p);
  if (slice == nullptr) return;
  auto& moment = restored_moments_[parameter.name][std::string(name)];
  if (tensor.dim() == 0) {
    moment = tensor.clone();
    return;
  }
  if (!moment.defined()) moment = at::zeros({slice->place.numel}, tensor.options());
  copy_common(begin, tensor.view(-1), slice->place.begin, moment);
}

}  // namespace troupe
