// Sharded state as whole tensors and back: what checkpoints and exports are made of.
#include <nlohmann/json.hpp>

#include "strategies/sharded.hpp"
#include "tensor_io/state_matching.hpp"

namespace troupe {
namespace {

/// One kind of state of the optimizer, of all parameters that have it: exp_avg, step ...
struct SlotKind {
  bool is_scalar = false;
  int dtype = 0;
  std::map<std::string, double> scalars;  // by parameter
  std::vector<std::string> parameters;    // that have it, sorted
};

using SlotKinds = std::map<std::string, SlotKind>;

void to_json(nlohmann::json& json, const SlotKind& kind) {
  json = {{"scalar", kind.is_scalar}, {"dtype", kind.dtype}, {"scalars", kind.scalars}, {"parameters", kind.parameters}};
}

void from_json(const nlohmann::json& json, SlotKind& kind) {
  json.at("scalar").get_to(kind.is_scalar);
  json.at("dtype").get_to(kind.dtype);
  json.at("scalars").get_to(kind.scalars);
  json.at("parameters").get_to(kind.parameters);
}

std::pair<std::string, std::string> parameter_and_slot(const std::string& name) {
  const auto dot = name.rfind('.');
  if (dot == std::string::npos) throw Error(ErrorCode::mismatch, "optimizer state", name + " names no parameter");
  return {name.substr(0, dot), name.substr(dot + 1)};
}

void note(SlotKinds& kinds, const std::string& name, const at::Tensor& value) {
  const auto [parameter, slot] = parameter_and_slot(name);
  auto& kind = kinds[slot];
  kind.is_scalar = value.dim() == 0;
  kind.dtype = static_cast<int>(value.scalar_type());
  if (kind.is_scalar) kind.scalars[parameter] = value.item<double>();
  kind.parameters.push_back(parameter);
}

void merge(SlotKinds& into, const SlotKinds& from) {
  for (const auto& [slot, kind] : from) {
    auto& known = into[slot];
    known.is_scalar = kind.is_scalar;
    known.dtype = kind.dtype;
    known.scalars.insert(kind.scalars.begin(), kind.scalars.end());
    known.parameters.insert(known.parameters.end(), kind.parameters.begin(), kind.parameters.end());
  }
}

at::Tensor zeros(std::int64_t numel, int dtype) {
  return at::zeros({numel}, at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype)));
}

}  // namespace

NamedTensors Sharded::whole_state(Optimizer& optimizer) {
  torch::NoGradGuard no_grad;
  shard_optimizer(optimizer);
  const auto& parameters = parameters_->parameters();
  const auto& flats = parameters_->flats();
  const bool keeps = context_.rank == 0;
  std::map<std::string, at::Tensor> whole;
  const auto cut = [&](const FlatParameter& plan, const at::Tensor& values, const std::string& prefix, const std::string& suffix,
                       const std::set<std::string>* only) {
    if (!keeps) return;
    for (const auto& slot : plan.slots) {
      const auto& parameter = parameters[static_cast<std::size_t>(slot.parameter)];
      if (only != nullptr && only->count(parameter.name) == 0) continue;
      whole[prefix + parameter.name + suffix] =
          values.narrow(0, slot.offset, slot.numel).as_strided(parameter.sizes, parameter.strides).clone(at::MemoryFormat::Contiguous);
    }
  };
  for (std::size_t f = 0; f < flats.size(); ++f) cut(*flats[f].plan, parameters_->gather_master(f), "model.", "", nullptr);

  SlotKinds mine, all;
  const auto local = optimizer.state();
  const std::map<std::string, at::Tensor> by_name(local.begin(), local.end());
  for (const auto& [name, value] : local) note(mine, name, value);
  for (const auto& text : group_->all_gather_bytes(nlohmann::json(mine).dump(), "optimizer state"))
    merge(all, nlohmann::json::parse(text).get<SlotKinds>());
  for (const auto& [slot, kind] : all) {
    for (const auto& [parameter, value] : kind.scalars) {
      if (keeps) whole["optimizer." + parameter + "." + slot] = zeros(1, kind.dtype).fill_(value).squeeze();
    }
    if (kind.is_scalar) continue;
    const std::set<std::string> having(kind.parameters.begin(), kind.parameters.end());
    for (const auto& flat : flats) {
      if (std::none_of(flat.plan->slots.begin(), flat.plan->slots.end(),
                       [&](const auto& s) { return having.count(parameters[static_cast<std::size_t>(s.parameter)].name) != 0; }))
        continue;
      auto shard = zeros(flat.plan->shard_numel, kind.dtype);
      for (const auto& slice : parameters_->slices()) {
        if (&flats[static_cast<std::size_t>(slice.place.flat)] != &flat) continue;
        const auto found = by_name.find(parameters[static_cast<std::size_t>(slice.place.parameter)].name + "." + slot);
        if (found != by_name.end()) shard.narrow(0, slice.place.offset, slice.place.numel).copy_(found->second.view(-1));
      }
      auto values = zeros(flat.plan->numel, kind.dtype);
      group_->all_gather(values, shard, "optimizer state");
      cut(*flat.plan, values, "optimizer.", "." + slot, &having);
    }
  }

  NamedTensors state;
  if (!keeps) return state;
  // A shared parameter is there under all of its names, as where nothing is sharded.
  for (const auto& item : model_->named_parameters())
    state.emplace_back("model." + item.key(), whole.at("model." + parameters_->parameter_of(item.value()).name));
  for (const auto& item : model_->named_buffers()) state.emplace_back("model." + item.key(), item.value());
  for (const auto& parameter : parameters) {
    for (const auto& [slot, kind] : all) {
      const auto name = "optimizer." + parameter.name + "." + slot;
      if (const auto found = whole.find(name); found != whole.end()) state.emplace_back(name, found->second);
    }
  }
  return state;
}

bool Sharded::load_whole_state(const NamedTensors& saved, Optimizer& optimizer) {
  torch::NoGradGuard no_grad;
  shard_optimizer(optimizer);
  auto& lane = *context_.program_lane;
  const auto& parameters = parameters_->parameters();
  const auto& flats = parameters_->flats();
  const bool has = context_.rank == 0;
  const std::map<std::string, at::Tensor> values(saved.begin(), saved.end());

  // Rank 0 alone can compare; all hear of it.
  std::string problem;
  SlotKinds kinds;
  if (has) {
    try {
      NamedTensors expected;
      for (const auto& item : model_->named_parameters()) {
        const auto& parameter = parameters_->parameter_of(item.value());
        expected.emplace_back("model." + item.key(), at::empty({1}, at::TensorOptions().dtype(parameter.dtype)).expand(parameter.sizes));
      }
      for (const auto& item : model_->named_buffers()) expected.emplace_back("model." + item.key(), item.value());
      const auto difference = compare_state(with_prefix(saved, "model."), expected);
      if (!difference.empty()) problem = "loading the model: " + difference.describe();
      for (const auto& [name, value] : with_prefix(saved, "optimizer.")) note(kinds, name.substr(std::string("optimizer.").size()), value);
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  const auto header =
      nlohmann::json::parse(lane.broadcast_bytes(nlohmann::json{{"problem", problem}, {"kinds", kinds}}.dump(), 0, "checkpoint"));
  if (!header["problem"].get<std::string>().empty()) throw Error(ErrorCode::mismatch, "resume", header["problem"].get<std::string>());
  kinds = header["kinds"].get<SlotKinds>();

  const auto pack = [&](const FlatParameter& plan, int dtype, const std::string& prefix, const std::string& suffix) {
    auto flat = zeros(plan.numel, dtype);
    for (const auto& slot : plan.slots) {
      const auto& parameter = parameters[static_cast<std::size_t>(slot.parameter)];
      const auto found = values.find(prefix + parameter.name + suffix);
      if (found != values.end())
        flat.narrow(0, slot.offset, slot.numel).as_strided(parameter.sizes, parameter.strides).copy_(found->second);
    }
    return flat;
  };
  for (std::size_t f = 0; f < flats.size(); ++f)
    parameters_->load(f, has ? pack(*flats[f].plan, static_cast<int>(flats[f].plan->dtype), "model.", "") : at::Tensor(), lane);
  if (has) {
    for (auto& item : model_->named_buffers()) item.value().copy_(values.at("model." + item.key()));
  }
  buffers_->broadcast(lane);

  std::map<std::string, at::Tensor> moments;
  for (const auto& [slot, kind] : kinds) {
    const std::set<std::string> having(kind.parameters.begin(), kind.parameters.end());
    for (const auto& flat : flats) {
      at::Tensor whole;
      if (!kind.is_scalar) {
        whole = has ? pack(*flat.plan, kind.dtype, "optimizer.", "." + slot) : zeros(flat.plan->numel, kind.dtype);
        broadcast_tensors({{slot, whole}}, lane, "optimizer state");
      }
      for (const auto& slice : parameters_->slices()) {
        const auto& name = parameters[static_cast<std::size_t>(slice.place.parameter)].name;
        if (&flats[static_cast<std::size_t>(slice.place.flat)] != &flat || having.count(name) == 0) continue;
        const auto begin = group_->rank() * flat.plan->shard_numel + slice.place.offset;
        moments[name + "." + slot] = kind.is_scalar ? zeros(1, kind.dtype).fill_(kind.scalars.at(name)).squeeze()
                                                    : whole.narrow(0, begin, slice.place.numel).clone();
      }
    }
  }
  optimizer.load_state(NamedTensors(moments.begin(), moments.end()));
  return true;
}

}  // namespace troupe
