// Shards as rows of tensors and back: what checkpoints are made of.

#include "strategies/sharded/sharded_strategy.hpp"
#include "tensor_io/checkpoint/state_matching.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/files/bounded_json.hpp"
#include "tensor_io/layout/flat_rows.hpp"

namespace troupe {
namespace {

std::pair<std::string, std::string> parameter_and_slot(const std::string& name) {
  const auto dot = name.rfind('.');
  if (dot == std::string::npos) throw Error(ErrorCode::mismatch, "optimizer state", name + " names no parameter");
  return {name.substr(0, dot), name.substr(dot + 1)};
}

FlatRows rows_of(const ShardedParameters::Parameter& parameter) { return {parameter.sizes, parameter.strides}; }

/// How many elements at the start of shard `rank` belong to a row that begins in the shard of a rank before.
std::int64_t leading(const FlatParameter& flat, const std::vector<ShardedParameters::Parameter>& parameters, int rank) {
  const auto begin = rank * flat.shard_numel;
  for (const auto& slot : flat.slots) {
    if (slot.offset >= begin || slot.offset + slot.numel <= begin) continue;
    const auto row = rows_of(parameters[static_cast<std::size_t>(slot.parameter)]).row_numel();
    const auto begun = (begin - slot.offset) % row;
    if (begun == 0) return 0;
    return std::min({row - begun, slot.offset + slot.numel - begin, flat.shard_numel});
  }
  return 0;
}

/// One tensor that is cut like a flat parameter: the masters, or one moment of an optimizer.
struct FlatState {
  std::string prefix, suffix;  // around a parameter's name
  at::Tensor shard;            // (shard_numel,)
};

/// The starts of all ranks' shards that belong to rows of ranks before them. Collective over the group.
class Fringes {
 public:
  Fringes(const FlatParameter& flat, const std::vector<ShardedParameters::Parameter>& parameters,
          const std::vector<FlatState>& states, Communicator& group)
      : flat_(flat) {
    std::int64_t longest = 0;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      lengths_.push_back(leading(flat, parameters, rank));
      longest = std::max(longest, lengths_.back());
    }
    if (longest == 0) return;
    for (const auto& state : states) {
      starts_.push_back(bytes_);
      bytes_ +=
          (longest * static_cast<std::int64_t>(state.shard.element_size()) + kAlignment - 1) / kAlignment * kAlignment;
    }
    const auto mine = at::zeros({bytes_}, at::kByte);
    for (std::size_t i = 0; i < states.size(); ++i) {
      const auto start = states[i].shard.narrow(0, 0, longest).view(at::kByte);
      mine.narrow(0, starts_[i], start.numel()).copy_(start);
    }
    all_ = at::empty({group.world_size() * bytes_}, at::kByte);
    group.all_gather(all_, mine, "rows between shards");
  }

  /// Elements [begin, end) of the flat parameter, which lie behind this rank's shard, of state `index`.
  void append(std::size_t index, at::ScalarType dtype, std::int64_t begin, std::int64_t end,
              std::vector<at::Tensor>& pieces) const {
    for (auto rank = begin / flat_.shard_numel; begin < end; ++rank) {
      const auto numel = std::min(end - begin, lengths_[static_cast<std::size_t>(rank)]);
      const auto bytes = numel * static_cast<std::int64_t>(c10::elementSize(dtype));
      pieces.push_back(all_.narrow(0, rank * bytes_ + starts_[index], bytes).view(dtype));
      begin += numel;
    }
  }

 private:
  static constexpr std::int64_t kAlignment = 64;
  const FlatParameter& flat_;
  std::vector<std::int64_t> lengths_;  // by rank
  std::vector<std::int64_t> starts_;   // by state, in a rank's bytes
  std::int64_t bytes_ = 0;             // of a rank
  at::Tensor all_;
};

}  // namespace

std::map<std::string, at::ScalarType> moment_types(Optimizer& optimizer, Communicator& group) {
  std::map<std::string, int> mine;
  for (const auto& [name, value] : optimizer.state()) {
    (void)parameter_and_slot(name);  // or it is refused
    if (value.dim() > 0) mine[name] = static_cast<int>(value.scalar_type());
  }
  std::map<std::string, at::ScalarType> all;
  for (const auto& text : group.all_gather_bytes(nlohmann::json(mine).dump(), "optimizer state")) {
    const auto types = read_bounded_json(text, "the optimizer state of a rank", {}, [](const nlohmann::json& other) {
      return other.get<std::map<std::string, int>>();
    });
    for (const auto& [name, type] : types) all[name] = static_cast<at::ScalarType>(type);
  }
  return all;
}

std::vector<TensorPart> ShardedStrategy::state_parts(Optimizer& optimizer, int rank, int world_size) {
  torch::NoGradGuard no_grad;
  shard_optimizer(optimizer);
  const auto& parameters = parameters_->parameters();
  const auto& flats = parameters_->flats();

  const auto local = optimizer.state();
  const std::map<std::string, at::Tensor> by_name(local.begin(), local.end());
  const auto types = moment_types(optimizer, *group_);
  // A shared parameter is there under all of its names, as where nothing is sharded.
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& item : model_->named_parameters()) {
    if (parameters_->has(item.value())) names[parameters_->parameter_of(item.value()).name].push_back(item.key());
  }

  std::vector<TensorPart> parts;
  const int replicas = replicas_ ? replicas_->world_size() : 1, replica = replicas_ ? replicas_->rank() : 0;
  for (std::size_t f = 0; f < flats.size(); ++f) {
    if (static_cast<int>(f) % replicas != replica) continue;  // another group writes it
    const auto& plan = *flats[f].plan;
    std::vector<FlatState> states{{"model.", "", flats[f].master}};
    std::map<std::string, at::ScalarType> kinds;  // exp_avg ...: what any of its parameters has
    for (const auto& slot : plan.slots) {
      for (const auto& [name, type] : entries_of(types, parameters[static_cast<std::size_t>(slot.parameter)].name))
        kinds.emplace(parameter_and_slot(name).second, type);
    }
    for (const auto& [slot, type] : kinds)
      states.push_back({"optimizer.", "." + slot, at::zeros({plan.shard_numel}, at::TensorOptions().dtype(type))});
    // A shard of a moment is not one tensor: only its leading elements are needed as one.
    const auto lead = leading(plan, parameters, group_->rank());
    for (const auto& slice : parameters_->slices()) {
      if (static_cast<std::size_t>(slice.place.flat) != f || slice.place.offset >= lead) continue;
      for (std::size_t i = 1; i < states.size(); ++i) {
        const auto found =
            by_name.find(parameters[static_cast<std::size_t>(slice.place.parameter)].name + states[i].suffix);
        if (found != by_name.end())
          states[i].shard.narrow(0, slice.place.offset, slice.place.numel).copy_(found->second.view(-1));
      }
    }
    const Fringes fringes(plan, parameters, states, *group_);
    for (const auto& slice : parameters_->slices()) {
      if (static_cast<std::size_t>(slice.place.flat) != f) continue;
      const auto& parameter = parameters[static_cast<std::size_t>(slice.place.parameter)];
      const auto rows = rows_of(parameter);
      const auto first = rows.row_from(slice.place.begin), behind = slice.place.begin + slice.place.numel;
      const auto skipped = first * rows.row_numel() - slice.place.begin;
      if (skipped >= slice.place.numel) continue;  // no row begins here
      const auto end = rows.row_from(behind) * rows.row_numel();
      const auto slot = std::find_if(plan.slots.begin(), plan.slots.end(),
                                     [&](const auto& s) { return s.parameter == slice.place.parameter; });
      for (std::size_t i = 0; i < states.size(); ++i) {
        at::Tensor own = slice.leaf.detach();
        if (i > 0) {
          const auto found = by_name.find(parameter.name + states[i].suffix);
          if (found == by_name.end()) continue;
          own = found->second.view(-1);
        }
        std::vector<at::Tensor> pieces{own.narrow(0, skipped, slice.place.numel - skipped)};
        if (end > behind) pieces[0] = pieces[0].cpu();  // where the rest of the row is
        if (end > behind) fringes.append(i, own.scalar_type(), slot->offset + behind, slot->offset + end, pieces);
        if (i > 0) {
          parts.push_back(rows.part(states[i].prefix + parameter.name + states[i].suffix, first, std::move(pieces)));
        } else {
          for (const auto& name : names[parameter.name]) parts.push_back(rows.part("model." + name, first, pieces));
        }
      }
      if (slice.place.begin > 0) continue;
      for (const auto& [name, value] : entries_of(by_name, parameter.name)) {
        if (value.dim() == 0) parts.push_back(whole_part("optimizer." + name, value));
      }
    }
  }
  // Of a parameter without elements nobody has a slice.
  NamedTensors shared;
  for (const auto& parameter : parameters) {
    for (const auto& name : names[parameter.name]) {
      if (parameter.tensor.numel() == 0)
        shared.emplace_back("model." + name, at::empty(parameter.sizes, at::TensorOptions().dtype(parameter.dtype)));
    }
  }
  NamedTensors buffers;
  for (const auto& item : model_->named_buffers()) buffers.emplace_back("model." + item.key(), item.value());
  for (auto& part : parts_for(shared, rank, world_size)) parts.push_back(std::move(part));
  for (auto& part : parts_of_first(buffers, rank)) parts.push_back(std::move(part));
  return parts;
}

void ShardedStrategy::read_state(const StateReader& state, Optimizer& optimizer) {
  torch::NoGradGuard no_grad;
  shard_optimizer(optimizer);
  if (parameters_->offloads()) context_.program_communicator->wait_on_host("copies of the shards");  // still read
  const auto& parameters = parameters_->parameters();
  NamedTensors expected;
  for (const auto& item : model_->named_parameters()) {
    if (!parameters_->has(item.value())) continue;
    const auto& parameter = parameters_->parameter_of(item.value());
    expected.emplace_back("model." + item.key(),
                          at::empty({}, at::TensorOptions().dtype(parameter.dtype)).expand(parameter.sizes));
  }
  for (const auto& item : model_->named_buffers()) expected.emplace_back("model." + item.key(), item.value());
  const auto difference = compare_state(outlines(state, "model."), expected);
  if (!difference.empty()) throw Error(ErrorCode::mismatch, "resume", "loading the model: " + difference.describe());
  for (auto& item : model_->named_buffers()) state.read("model." + item.key(), item.value());

  constexpr std::string_view kPrefix = "optimizer.";
  std::map<std::string, std::vector<std::string>> slots;  // by parameter
  for (const auto& [name, entry] : state.entries()) {
    if (!name.starts_with(kPrefix)) continue;
    const auto [parameter, slot] = parameter_and_slot(name.substr(kPrefix.size()));
    slots[parameter].push_back(slot);
  }
  NamedTensors moments;
  for (const auto& slice : parameters_->slices()) {
    const auto& parameter = parameters[static_cast<std::size_t>(slice.place.parameter)];
    const auto rows = rows_of(parameter);
    // This rank's elements, out of the rows that they are in.
    const auto read = [&](const std::string& name, const at::Tensor& target) {
      const auto first = rows.row_of(slice.place.begin), last = rows.row_from(slice.place.begin + slice.place.numel);
      const auto skipped = slice.place.begin - first * rows.row_numel();
      const bool whole_rows = skipped == 0 && (last - first) * rows.row_numel() == slice.place.numel;
      const auto flat = whole_rows ? target : at::empty({(last - first) * rows.row_numel()}, target.options());
      state.read(name, rows.offsets(first), rows.block(flat));
      if (!whole_rows) target.copy_(flat.narrow(0, skipped, slice.place.numel));
    };
    read("model." + parameter.name, slice.leaf.detach());
    for (const auto& slot : slots[parameter.name]) {
      const auto name = "optimizer." + parameter.name + "." + slot;
      const auto& entry = state.entries().find(name)->second;
      // One number of the parameter, as its count of steps; a parameter without dimensions has moments like that, too.
      const bool one_number = entry.shape.empty() && (slot == "step" || !parameter.sizes.empty());
      auto value = at::empty(one_number ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{slice.place.numel},
                             at::TensorOptions().dtype(entry.dtype));
      if (one_number) {
        state.read(name, value);
      } else if (entry.shape == parameter.sizes) {
        read(name, value);
      } else {
        throw Error(ErrorCode::mismatch, "resume",
                    "loading the optimizer: " + name + " does not have the shape of its parameter");
      }
      moments.emplace_back(parameter.name + "." + slot, value);
    }
  }
  optimizer.load_state(moments);
}

std::vector<HeldMemory> ShardedStrategy::held_memory() const {
  if (!parameters_ || !gradients_) return {};
  const auto device = parameters_->device();
  std::vector<at::Tensor> wholes, masters, shards;
  for (const auto& flat : parameters_->flats()) {
    const bool is_part = flat.whole.defined() && flat.master.is_alias_of(flat.whole);
    if (flat.residence != Residence::gathered) wholes.push_back(flat.whole);  // else the gathers have it
    if (!is_part) masters.push_back(flat.master);
    shards.push_back(flat.gradient);
  }
  return {{"whole parameters", bytes_on(device, wholes)},
          {"parameter shards", bytes_on(device, masters)},
          {"gathered units", gathers_ ? gathers_->memory_bytes() : 0},
          {"gradient shards", bytes_on(device, shards)},
          {"whole gradients", gradients_->buffer_bytes()},
          {"buffers", bytes_on(device, model_->buffers())}};
}

}  // namespace troupe
