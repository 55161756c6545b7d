#include "strategies/sharded/shard_tensors.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string_view>

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

// A flat parameter's elements have the same places in every cut.
void place_flat(std::string_view index, std::int32_t shard, const at::Tensor& tensor, ShardedParameters& parameters) {
  auto& flat = parameters.flats().at(std::stoul(std::string(index)));
  copy_common(shard * tensor.numel(), tensor, parameters.group().rank() * flat.plan->shard_numel, flat.master);
}

void place_buffer(const std::string& name, const at::Tensor& tensor, torch::nn::Module& model) {
  const auto buffers = model.named_buffers();
  const auto* buffer = buffers.find(name);
  if (buffer == nullptr) throw std::out_of_range("no such buffer");
  at::Tensor(*buffer).copy_(tensor);
}

void place_moment(std::string_view name, const at::Tensor& tensor, const ShardedParameters& parameters,
                  SlicedOptimizers& optimizers) {
  const auto p = std::stoul(next_field(name));
  const auto begin = std::stoll(next_field(name));
  const auto& parameter = parameters.parameters().at(p);
  const auto* slice = parameters.slice_at(p);
  if (slice == nullptr) return;
  auto& moment = optimizers.restored_moment(parameter.name, std::string(name));
  if (tensor.dim() == 0) {
    moment = tensor.clone();
    return;
  }
  if (!moment.defined()) moment = at::zeros({slice->place.numel}, tensor.options());
  copy_common(begin, tensor.view(-1), slice->place.begin, moment);
}

}  // namespace

NamedTensors tensors_of_shard(ShardedParameters& parameters, Optimizer& optimizer, const NamedTensors& buffers) {
  torch::NoGradGuard no_grad;
  const auto& flats = parameters.flats();
  NamedTensors tensors;
  for (std::size_t f = 0; f < flats.size(); ++f) tensors.emplace_back("flat." + std::to_string(f), flats[f].master);
  std::map<std::string, std::size_t> index;
  for (std::size_t p = 0; p < parameters.parameters().size(); ++p) index[parameters.parameters()[p].name] = p;
  for (const auto& [name, value] : optimizer.state()) {
    const auto dot = name.rfind('.');
    const auto p = index.at(name.substr(0, dot));
    const auto* slice = parameters.slice_at(p);
    if (slice != nullptr)
      tensors.emplace_back("moment." + std::to_string(p) + "." + std::to_string(slice->place.begin) + name.substr(dot),
                           value);
  }
  for (const auto& [name, value] : buffers) tensors.emplace_back("buffer." + name, value);
  return tensors;
}

void place_shard_tensors(const ShardCopy& copy, std::int32_t shard, torch::nn::Module& model,
                         ShardedParameters& parameters, SlicedOptimizers& optimizers) {
  torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : copy.tensors) {
    try {
      std::string_view rest = name;
      const auto kind = next_field(rest);
      if (kind == "flat") {
        place_flat(rest, shard, tensor, parameters);
      } else if (kind == "buffer") {
        place_buffer(std::string(rest), tensor, model);
      } else {
        place_moment(rest, tensor, parameters, optimizers);
      }
    } catch (const std::logic_error&) {
      throw Error(ErrorCode::bad_data, "the copy of a shard", "tensor '" + name + "' is not in this model");
    }
  }
}

}  // namespace troupe
