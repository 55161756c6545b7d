#include "strategies/mesh/partitioned_state.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tensor_io/checkpoint/state_matching.hpp"

namespace troupe {

std::string parameter_in(std::string_view name) {
  constexpr std::string_view kModel = "model.", kOptimizer = "optimizer.";
  if (name.starts_with(kModel)) return std::string(name.substr(kModel.size()));
  if (!name.starts_with(kOptimizer)) return {};
  name.remove_prefix(kOptimizer.size());
  return std::string(name.substr(0, name.rfind('.')));
}

CutStateReader::CutStateReader(const StateReader& state, std::map<std::string, ParameterCut> cuts,
                               const std::set<std::string>& elsewhere)
    : state_(state), cuts_(std::move(cuts)) {
  for (const auto& [name, whole] : state.entries()) {
    const auto parameter = parameter_in(name);
    if (elsewhere.contains(parameter)) continue;
    auto entry = whole;
    if (const auto found = cuts_.find(parameter); found != cuts_.end() && !entry.shape.empty())
      entry.shape.at(static_cast<std::size_t>(found->second.dim)) /= found->second.ranks;
    entries_.emplace(name, std::move(entry));
  }
}

void CutStateReader::read(const std::string& name, at::IntArrayRef offsets, const at::Tensor& target) const {
  const auto found = cuts_.find(parameter_in(name));
  if (found == cuts_.end() || target.dim() == 0) return state_.read(name, offsets, target);
  const auto& cut = found->second;
  const auto dim = static_cast<std::size_t>(cut.dim);
  const auto begin = offsets[dim], end = begin + target.size(cut.dim);
  for (const auto& run : cut.runs(state_.entries().find(name)->second.shape[dim], name)) {
    const auto from = std::max(begin, run.own), to = std::min(end, run.own + run.length);
    if (from >= to) continue;
    auto place = offsets.vec();
    place[dim] = run.whole + from - run.own;
    state_.read(name, place, target.narrow(cut.dim, from - begin, to - from));
  }
}

void check_saved_model(const StateReader& state, const MeshParameters& parameters, const torch::nn::Module& model) {
  NamedTensors expected;
  for (const auto& parameter : parameters.all())
    expected.emplace_back("model." + parameter.name,
                          at::empty({}, parameter.tensor.options().requires_grad(false)).expand(parameter.sizes));
  for (const auto& item : model.named_buffers()) expected.emplace_back("model." + item.key(), item.value());
  const auto difference = compare_state(outlines(state, "model."), expected);
  if (!difference.empty()) throw Error(ErrorCode::mismatch, "resume", "loading the model: " + difference.describe());
  for (const auto& [name, entry] : state.entries()) {
    if (!name.starts_with("optimizer.") || entry.shape.empty()) continue;
    const auto index = parameters.index_of(parameter_in(name));
    if (index && entry.shape != parameters.all()[*index].sizes)
      throw Error(ErrorCode::mismatch, "resume",
                  "loading the optimizer: " + name + " does not have the shape of its parameter");
  }
}

TensorPart part_of_cut(const std::string& name, const at::Tensor& own, const std::vector<std::int64_t>& sizes,
                       const ParameterCut& cut, Communicator& communicator) {
  const auto dim = static_cast<std::size_t>(cut.dim);
  auto values = own.detach().contiguous();
  auto run = cut.runs(sizes[dim], name).front();
  if (cut.stack > 1) {
    auto all = at::empty({cut.ranks * values.numel()}, values.options());
    communicator.all_gather(all, values.view(-1), "parts of " + name);
    std::vector<at::Tensor> runs;  // in the order of the whole
    for (std::int64_t s = 0; s < cut.stack; ++s) {
      for (int r = 0; r < cut.ranks; ++r) {
        runs.push_back(all.narrow(0, r * values.numel(), values.numel())
                           .view(values.sizes())
                           .narrow(cut.dim, s * run.length, run.length));
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

}  // namespace troupe
