#include "strategies/sharded/sharded_state.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tensor_io/checkpoint/state_matching.hpp"
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

namespace {

/// The parts of one save, flat by flat. Collective over the parameters' group.
class ShardWriter {
 public:
  ShardWriter(const torch::nn::Module& model, ShardedParameters& parameters, Optimizer& optimizer)
      : parameters_(parameters), types_(moment_types(optimizer, parameters.group())) {
    for (const auto& [name, value] : optimizer.state()) moments_.emplace(name, value);
    // A shared parameter is there under all of its names, as where nothing is sharded.
    for (const auto& item : model.named_parameters()) {
      if (parameters.has(item.value())) names_[parameters.parameter_of(item.value()).name].push_back(item.key());
    }
  }

  const std::vector<std::string>& names_of(const std::string& parameter) { return names_[parameter]; }

  void add_flat(std::size_t f, std::vector<TensorPart>& parts) {
    const auto& plan = *parameters_.flats()[f].plan;
    const auto states = states_of(f);
    const Fringes fringes(plan, parameters_.parameters(), states, parameters_.group());
    for (const auto& slice : parameters_.slices()) {
      if (static_cast<std::size_t>(slice.place.flat) == f) add_slice(slice, plan, states, fringes, parts);
    }
  }

 private:
  const ShardedParameters::Parameter& parameter_at(const ShardSlice& place) const {
    return parameters_.parameters()[static_cast<std::size_t>(place.parameter)];
  }
  // (numel of this rank's slice,); undefined if the optimizer has none.
  at::Tensor moment(const std::string& name) const {
    const auto found = moments_.find(name);
    return found == moments_.end() ? at::Tensor() : found->second.view(-1);
  }

  // The masters, and each moment that any of the flat's parameters has. A shard of a moment is not one tensor: only its
  // leading elements are needed as one.
  std::vector<FlatState> states_of(std::size_t f) const {
    const auto& flat = parameters_.flats()[f];
    const auto& all = parameters_.parameters();
    std::map<std::string, at::ScalarType> kinds;  // exp_avg ...
    for (const auto& slot : flat.plan->slots) {
      for (const auto& [name, type] : entries_of(types_, all[static_cast<std::size_t>(slot.parameter)].name))
        kinds.emplace(parameter_and_slot(name).second, type);
    }
    std::vector<FlatState> states{{"model.", "", flat.master}};
    for (const auto& [slot, type] : kinds)
      states.push_back(
          {"optimizer.", "." + slot, at::zeros({flat.plan->shard_numel}, at::TensorOptions().dtype(type))});
    const auto lead = leading(*flat.plan, all, parameters_.group().rank());
    for (const auto& slice : parameters_.slices()) {
      const auto& place = slice.place;
      if (static_cast<std::size_t>(place.flat) != f || place.offset >= lead) continue;
      for (std::size_t i = 1; i < states.size(); ++i) {
        const auto own = moment(parameter_at(place).name + states[i].suffix);
        if (own.defined()) states[i].shard.narrow(0, place.offset, place.numel).copy_(own);
      }
    }
    return states;
  }

  void add_slice(const ShardedParameters::Slice& slice, const FlatParameter& plan, const std::vector<FlatState>& states,
                 const Fringes& fringes, std::vector<TensorPart>& parts) {
    const auto& parameter = parameter_at(slice.place);
    const auto rows = rows_of(parameter);
    const auto first = rows.row_from(slice.place.begin), behind = slice.place.begin + slice.place.numel;
    const auto skipped = first * rows.row_numel() - slice.place.begin;
    if (skipped >= slice.place.numel) return;  // no row begins here
    const auto end = rows.row_from(behind) * rows.row_numel();
    const auto slot = std::find_if(plan.slots.begin(), plan.slots.end(),
                                   [&](const auto& s) { return s.parameter == slice.place.parameter; });
    for (std::size_t i = 0; i < states.size(); ++i) {
      const auto own = i == 0 ? slice.leaf.detach() : moment(parameter.name + states[i].suffix);
      if (!own.defined()) continue;
      std::vector<at::Tensor> pieces{own.narrow(0, skipped, slice.place.numel - skipped)};
      if (end > behind) {  // the rest of the row lies in the host's memory
        pieces[0] = pieces[0].cpu();
        fringes.append(i, own.scalar_type(), slot->offset + behind, slot->offset + end, pieces);
      }
      if (i > 0) {
        parts.push_back(rows.part(states[i].prefix + parameter.name + states[i].suffix, first, std::move(pieces)));
      } else {
        for (const auto& name : names_of(parameter.name)) parts.push_back(rows.part("model." + name, first, pieces));
      }
    }
    if (slice.place.begin > 0) return;
    for (const auto& [name, value] : entries_of(moments_, parameter.name)) {
      if (value.dim() == 0) parts.push_back(whole_part("optimizer." + name, value));
    }
  }

  ShardedParameters& parameters_;
  std::map<std::string, at::Tensor> moments_;              // this rank's, by name
  std::map<std::string, at::ScalarType> types_;            // all ranks'
  std::map<std::string, std::vector<std::string>> names_;  // by parameter
};

}  // namespace

std::vector<TensorPart> parts_of_shards(const torch::nn::Module& model, ShardedParameters& parameters,
                                        Optimizer& optimizer, const StateWriter& writer) {
  torch::NoGradGuard no_grad;
  ShardWriter shards(model, parameters, optimizer);
  std::vector<TensorPart> parts;
  for (std::size_t f = 0; f < parameters.flats().size(); ++f) {
    if (static_cast<int>(f) % writer.replicas == writer.replica) shards.add_flat(f, parts);  // else another group does
  }
  NamedTensors shared, buffers;
  for (const auto& parameter : parameters.parameters()) {  // one without elements has no slices
    if (parameter.tensor.numel() != 0) continue;
    for (const auto& name : shards.names_of(parameter.name))
      shared.emplace_back("model." + name, at::empty(parameter.sizes, at::TensorOptions().dtype(parameter.dtype)));
  }
  for (const auto& item : model.named_buffers()) buffers.emplace_back("model." + item.key(), item.value());
  for (auto& part : parts_for(shared, writer.rank, writer.world_size)) parts.push_back(std::move(part));
  for (auto& part : parts_of_first(buffers, writer.rank)) parts.push_back(std::move(part));
  return parts;
}

void read_shards(const StateReader& state, torch::nn::Module& model, const ShardedParameters& parameters,
                 Optimizer& optimizer) {
  torch::NoGradGuard no_grad;
  NamedTensors expected;
  for (const auto& item : model.named_parameters()) {
    if (!parameters.has(item.value())) continue;
    const auto& parameter = parameters.parameter_of(item.value());
    expected.emplace_back("model." + item.key(),
                          at::empty({}, at::TensorOptions().dtype(parameter.dtype)).expand(parameter.sizes));
  }
  for (const auto& item : model.named_buffers()) expected.emplace_back("model." + item.key(), item.value());
  const auto difference = compare_state(outlines(state, "model."), expected);
  if (!difference.empty()) throw Error(ErrorCode::mismatch, "resume", "loading the model: " + difference.describe());
  for (auto& item : model.named_buffers()) state.read("model." + item.key(), item.value());

  constexpr std::string_view kPrefix = "optimizer.";
  std::map<std::string, std::vector<std::string>> slots;  // by parameter
  for (const auto& [name, entry] : state.entries()) {
    if (!name.starts_with(kPrefix)) continue;
    const auto [parameter, slot] = parameter_and_slot(name.substr(kPrefix.size()));
    slots[parameter].push_back(slot);
  }
  NamedTensors moments;
  for (const auto& slice : parameters.slices()) {
    const auto& parameter = parameters.parameters()[static_cast<std::size_t>(slice.place.parameter)];
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

}  // namespace troupe
