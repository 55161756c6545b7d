#include "strategies/mesh/tensor_plan.hpp"

#include <algorithm>
#include <set>

#include "actors/block/wrap_policy.hpp"
#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"
#include "tensor_io/layers/dropout.hpp"

namespace troupe {
namespace {

Error plan_refused(const std::string& cause, const std::string& remedy = {}) {
  return Error(ErrorCode::usage, "tensor_plan", cause, remedy);
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

TensorPlanEntry parse_entry(std::string_view item) {
  const auto colon = item.rfind(':');
  const std::string shown(item);
  if (colon == std::string_view::npos)
    throw plan_refused("'" + shown + "' does not say how to share it", "write it as in layers.*.up: column");
  TensorPlanEntry entry;
  entry.pattern = trimmed(item.substr(0, colon));
  auto how = trimmed(item.substr(colon + 1));
  if (const auto slash = how.find('/'); slash != std::string_view::npos) {
    entry.stack = number_of<std::int64_t>(how.substr(slash + 1)).value_or(0);
    if (entry.stack < 1 || how.substr(0, slash) != "column")
      throw plan_refused("'" + shown + "': only column takes a number of parts, as in column/3");
    how = how.substr(0, slash);
  }
  static const std::map<std::string_view, LayerSplit> kinds{
      {"column", LayerSplit::column},         {"gather", LayerSplit::gather}, {"row", LayerSplit::row},
      {"vocabulary", LayerSplit::vocabulary}, {"whole", LayerSplit::whole},   {"sequence", LayerSplit::none}};
  const auto kind = kinds.find(how);
  if (kind == kinds.end() || entry.pattern.empty())
    throw plan_refused("'" + shown + "': '" + std::string(how) +
                       "' is not one of column, gather, row, vocabulary, sequence, whole");
  entry.split = kind->second;
  entry.optional = entry.pattern.ends_with('?');
  if (entry.optional) entry.pattern.pop_back();
  return entry;
}

struct Named {
  std::string path;
  std::shared_ptr<torch::nn::Module> module;
};

/// Keeps this rank's part of a parameter.
void cut_parameter(torch::Tensor& parameter, const ParameterCut& cut, const std::string& name) {
  torch::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const auto& run : cut.runs(parameter.size(cut.dim), name))
    parts.push_back(parameter.detach().narrow(cut.dim, run.whole, run.length));
  parameter.set_data(at::cat(parts, cut.dim));
}

class Sharing {
 public:
  Sharing(const TensorParallel& group, bool cut_values) : group_(group), cut_values_(cut_values) {}

  void share(const Named& named, const TensorPlanEntry& entry) {
    const auto& path = named.path;
    const auto& module = named.module;
    const auto cut = [&](const char* which, torch::Tensor& parameter, int dim) {
      if (!parameter.defined()) return;
      const auto name = path + "." + which;
      const ParameterCut how{dim, entry.stack, group_.ranks(), group_.rank()};
      if (found_.cuts.contains(name)) throw plan_refused(path + " is in the plan twice");
      if (cut_values_) cut_parameter(parameter, how, name);
      found_.cuts[name] = how;
    };
    if (auto* dropout = dynamic_cast<nn::DropoutImpl*>(module.get())) {
      share_dropout(path, *dropout, entry);
    } else if (entry.split == LayerSplit::none) {
      if (group_.sequence) {
        for (const auto& item : module->named_parameters()) found_.partial.push_back(path + "." + item.key());
      }
    } else if (auto* linear = dynamic_cast<nn::LinearImpl*>(module.get());
               linear != nullptr && entry.split != LayerSplit::vocabulary && entry.split != LayerSplit::whole) {
      const bool row = entry.split == LayerSplit::row;
      cut("weight", linear->weight, row ? 1 : 0);
      if (!row) cut("bias", linear->bias, 0);
      if (row && group_.sequence && linear->bias.defined()) found_.partial.push_back(path + ".bias");
      linear->share(entry.split, group_);
      has_columns_ = has_columns_ || entry.split == LayerSplit::column;
    } else if (auto* embedding = dynamic_cast<nn::EmbeddingImpl*>(module.get());
               embedding != nullptr && entry.split == LayerSplit::vocabulary) {
      const auto& options = embedding->options;
      if (options.max_norm() || options.scale_grad_by_freq() || options.sparse()) {
        throw plan_refused(path + " has max_norm, scale_grad_by_freq or sparse, which don't work on a part of its rows",
                           "leave the option out, or the layer out of the plan");
      }
      cut("weight", embedding->weight, 0);
      embedding->share(entry.split, group_);
    } else {
      throw plan_refused(path + " can't be shared this way: it is " + module->name(),
                         "use column, gather and row for troupe::nn::Linear, vocabulary for troupe::nn::Embedding");
    }
  }
  /// Every dropout's part is known.
  void check_dropouts(const std::vector<Named>& modules) const {
    if (group_.ranks() == 1 || !(group_.sequence || has_columns_)) return;
    for (const auto& [path, module] : modules) {
      const auto* dropout = dynamic_cast<const nn::DropoutImpl*>(module.get());
      if (dropout == nullptr || dropout->options.p() == 0 || placed_.contains(dropout)) continue;
      throw plan_refused("'" + path + "' drops elements, and the plan does not say which part of its input a rank has",
                         "add '" + path + ": whole', or column between a column and a row layer, or sequence");
    }
  }
  SharedParameters take() { return std::move(found_); }

 private:
  void share_dropout(const std::string& path, nn::DropoutImpl& dropout, const TensorPlanEntry& entry) {
    placed_.insert(&dropout);
    if (entry.split == LayerSplit::column && entry.stack == 1) {
      dropout.share(-1, group_.rank(), group_.ranks());
    } else if (entry.split == LayerSplit::none) {
      if (group_.sequence) dropout.share(1, group_.rank(), group_.ranks());
    } else if (entry.split != LayerSplit::whole) {
      throw plan_refused(path + " is a dropout", "use column, sequence or whole for it");
    }
  }

  const TensorParallel& group_;
  bool cut_values_;
  bool has_columns_ = false;
  std::set<const torch::nn::Module*> placed_;  // dropouts whose part is known
  SharedParameters found_;
};

}  // namespace

std::vector<TensorPlanEntry> parse_tensor_plan(std::string_view text) {
  std::vector<TensorPlanEntry> plan;
  text = trimmed(text);
  if (text.starts_with('{') && text.ends_with('}')) text = text.substr(1, text.size() - 2);
  while (!trimmed(text).empty()) {
    const auto comma = text.find(',');
    plan.push_back(parse_entry(trimmed(text.substr(0, comma))));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return plan;
}

SharedParameters share_layers(torch::nn::Module& model, const std::vector<TensorPlanEntry>& plan,
                              const TensorParallel& group, bool cut_values) {
  Sharing sharing(group, cut_values);
  std::vector<Named> modules;
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    modules.push_back({item.key(), item.value()});
  for (const auto& entry : plan) {
    bool fits = false;
    for (const auto& named : modules) {
      if (!matches_path(entry.pattern, named.path)) continue;
      sharing.share(named, entry);
      fits = true;
    }
    if (!fits && !entry.optional) throw plan_refused("'" + entry.pattern + "' matches no module of the model");
  }
  sharing.check_dropouts(modules);
  for (const auto& [path, module] : modules) {
    if (auto* split = dynamic_cast<nn::TokenSplitImpl*>(module.get())) split->share(group);
  }
  return sharing.take();
}

}  // namespace troupe
