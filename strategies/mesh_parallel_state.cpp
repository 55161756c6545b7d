// Parts of a model on a mesh as checkpoints have them: each parameter once, whole, under its full name.
#include "strategies/mesh_parallel.hpp"
#include "tensor_io/state_matching.hpp"
#include "tensor_io/state_parts.hpp"

namespace troupe {
namespace {

constexpr std::string_view kOptimizerPrefix = "optimizer.";

/// What this rank writes of a parameter that is cut, or of a moment of it: one run. Where it holds several (column/3) the ranks exchange
/// theirs, since a file has each tensor once. Collective over `lane`.
TensorPart part_of_cut(const std::string& name, const at::Tensor& own, const std::vector<std::int64_t>& sizes, const ParameterCut& cut,
                       Communicator& lane) {
  const auto dim = static_cast<std::size_t>(cut.dim);
  auto values = own.detach().contiguous();
  auto run = cut.runs(sizes[dim], name).front();
  if (cut.stack > 1) {
    auto all = at::empty({cut.ranks * values.numel()}, values.options());
    lane.all_gather(all, values.view(-1), "parts of " + name);
    std::vector<at::Tensor> runs;  // in the order of the whole
    for (std::int64_t s = 0; s < cut.stack; ++s) {
      for (int r = 0; r < cut.ranks; ++r) {
        runs.push_back(all.narrow(0, r * values.numel(), values.numel()).view(values.sizes()).narrow(cut.dim, s * run.length, run.length));
      }
    }
    run.length *= cut.stack;
    run.whole = cut.rank * run.length;
    values = at::cat(runs, cut.dim).narrow(cut.dim, run.whole, run.length).contiguous();
  }
  TensorPart part{name, values.scalar_type(), sizes, std::vector<std::int64_t>(sizes.size(), 0), sizes, {values}};
  part.offsets[dim] = run.whole;
  part.shape[dim] = run.length;
  return part;
}

}  // namespace

std::map<std::string, std::string> MeshParallel::state() {
  std::string text;
  for (const int border : borders_) text += (text.empty() ? "" : ",") + std::to_string(border);
  return {{"mesh", mesh_.to_string()}, {"pipeline.stages", text}};
}

bool MeshParallel::has_buffer(const std::string& name) const {
  if (mesh_.pp == 1) return true;
  return stage_of_block(block_of(name)) % mesh_.pp == place_.pp;
}

// What several ranks have alike the copies share out; what is cut each rank of a copy writes, the copies in turn.
std::vector<TensorPart> MeshParallel::state_parts(Optimizer& optimizer, int, int) {
  torch::NoGradGuard no_grad;
  if (borders_.empty()) cut_by({});
  shard_optimizer(optimizer);
  std::map<std::string, const Parameter*> by_name;
  for (const auto& parameter : parameters_) by_name[parameter.name] = &parameter;
  std::vector<TensorPart> parts;
  NamedTensors alike;
  std::size_t turn = 0;
  const auto add = [&](const std::string& name, const Parameter& parameter, const at::Tensor& value) {
    if (!parameter.own || (parameter.block < 0 && !writes_shared())) return;
    if (value.dim() > 0 && parameter.cut.dim >= 0) {
      if (static_cast<int>(turn++ % static_cast<std::size_t>(mesh_.dp)) == place_.dp)
        parts.push_back(part_of_cut(name, value, parameter.sizes, parameter.cut, *tp_lane_));
    } else if (place_.tp == 0) {
      alike.emplace_back(name, value.detach());
    }
  };
  for (const auto& parameter : parameters_) add("model." + parameter.name, parameter, parameter.tensor);
  for (const auto& [name, value] : optimizer.state()) add("optimizer." + name, *by_name.at(name.substr(0, name.rfind('.'))), value);
  for (const auto& item : model_->named_buffers()) {
    if (place_.tp == 0 && has_buffer(item.key())) alike.emplace_back("model." + item.key(), item.value());
  }
  for (auto& part : share_of(alike, place_.dp, mesh_.dp)) parts.push_back(std::move(part));
  return parts;
}

void MeshParallel::read_part(const StateReader& state, const std::string& name, const Parameter& parameter,
                             const at::Tensor& target) const {
  if (parameter.cut.dim < 0 || target.dim() == 0) return state.read(name, target);
  for (const auto& run : parameter.cut.runs(parameter.sizes[static_cast<std::size_t>(parameter.cut.dim)], name)) {
    std::vector<std::int64_t> offsets(parameter.sizes.size(), 0);
    offsets[static_cast<std::size_t>(parameter.cut.dim)] = run.whole;
    state.read(name, offsets, target.narrow(parameter.cut.dim, run.own, run.length));
  }
}

void MeshParallel::read_state(const StateReader& state, Optimizer& optimizer) {
  torch::NoGradGuard no_grad;
  if (borders_.empty()) {  // to be measured: as it was cut for the checkpoint is not known, and the state has to lie somewhere
    cut_by({});
  }
  shard_optimizer(optimizer);
  NamedTensors expected;
  for (const auto& parameter : parameters_)
    expected.emplace_back("model." + parameter.name,
                          at::empty({}, parameter.tensor.options().requires_grad(false)).expand(parameter.sizes));
  for (const auto& item : model_->named_buffers()) expected.emplace_back("model." + item.key(), item.value());
  const auto difference = compare_state(outlines(state, "model."), expected);
  if (!difference.empty()) throw Error(ErrorCode::mismatch, "resume", "loading the model: " + difference.describe());
  for (auto& item : model_->named_buffers()) state.read("model." + item.key(), item.value());
  std::map<std::string, const Parameter*> by_name;
  for (const auto& parameter : parameters_) {
    if (!parameter.own) continue;
    by_name[parameter.name] = &parameter;
    read_part(state, "model." + parameter.name, parameter, parameter.tensor.detach());
  }
  NamedTensors moments;
  for (const auto& [name, entry] : state.entries()) {
    if (!name.starts_with(kOptimizerPrefix)) continue;
    const auto moment = name.substr(kOptimizerPrefix.size());
    const auto found = by_name.find(moment.substr(0, moment.rfind('.')));
    if (found == by_name.end()) continue;
    const auto& parameter = *found->second;
    if (!entry.shape.empty() && entry.shape != parameter.sizes)
      throw Error(ErrorCode::mismatch, "resume", "loading the optimizer: " + name + " has not the shape of its parameter");
    auto value = at::empty(entry.shape.empty() ? at::IntArrayRef() : parameter.tensor.sizes(), at::TensorOptions().dtype(entry.dtype));
    read_part(state, name, parameter, value);
    moments.emplace_back(moment, value);
  }
  optimizer.load_state(moments);
}

}  // namespace troupe
