#include "launch/model/parameter_rules.hpp"

#include <torch/nn/module.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "launch/config/command_flags.hpp"
#include "launch/process/displayable.hpp"
#include "launch/process/formatted.hpp"
#include "tensor_io/base/error.hpp"

namespace troupe {
namespace {

constexpr std::string_view kNorms = "norms", kBiases = "biases";

std::vector<std::string> words_in(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    const auto first = word.find_first_not_of(' '), last = word.find_last_not_of(' ');
    words.push_back(first == std::string::npos ? std::string() : word.substr(first, last - first + 1));
  }
  if (text.ends_with(',')) words.emplace_back();
  return words;
}

bool fits(std::string_view glob, std::string_view name) {
  std::size_t g = 0, n = 0, star = std::string_view::npos, from = 0;
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      from = n;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == name[n])) {
      ++g, ++n;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', g) == std::string_view::npos;
}

// LayerNormImpl, BatchNorm2dImpl, somebody's::RmsNorm, and Block<...> of one.
bool is_norm(std::string_view type) {
  constexpr std::string_view kBlock = "troupe::Block<";
  if (type.starts_with(kBlock)) type.remove_prefix(kBlock.size());
  type = type.substr(0, type.find_first_of("<,>"));
  if (type.ends_with("Impl")) type.remove_suffix(4);
  if (type.size() > 2 && type.ends_with('d') && std::isdigit(static_cast<unsigned char>(type[type.size() - 2])) != 0)
    type.remove_suffix(2);
  return type.ends_with("Norm");
}

std::string_view last_part(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

/// One parameter, under all its names: the first is the one that it has in groups and checkpoints.
struct Known {
  std::vector<std::string> names;
  at::Tensor tensor;
  bool of_norm = false;
  bool is_bias() const { return tensor.dim() == 1 && last_part(names.front()) == "bias"; }
};

std::vector<Known> known_parameters(const torch::nn::Module& model) {
  std::set<const c10::TensorImpl*> of_norms;
  const auto look_at = [&](const torch::nn::Module& module) {
    if (!is_norm(module.name())) return;
    for (const auto& own : module.named_parameters(false)) of_norms.insert(own.value().unsafeGetTensorImpl());
  };
  look_at(model);
  for (const auto& module : model.modules(false)) look_at(*module);
  std::vector<Known> known;
  std::map<const c10::TensorImpl*, std::size_t> places;
  for (const auto& item : model.named_parameters()) {
    const auto* const tensor = item.value().unsafeGetTensorImpl();
    const auto [place, is_new] = places.emplace(tensor, known.size());
    if (is_new) known.push_back({{}, item.value(), of_norms.contains(tensor)});
    known[place->second].names.push_back(item.key());
  }
  return known;
}

bool word_fits(const std::string& word, const Known& parameter) {
  if (word == kNorms) return parameter.of_norm;
  if (word == kBiases) return parameter.is_bias();
  for (const auto& name : parameter.names) {
    if (fits(word, name)) return true;
  }
  return false;
}

void refuse_unfit(const std::string& field, const std::string& word, const std::vector<Known>& parameters) {
  std::vector<std::string> names{std::string(kNorms), std::string(kBiases)};
  for (const auto& parameter : parameters) {
    if (word == kNorms || word == kBiases || word_fits(word, parameter)) return;
    names.insert(names.end(), parameter.names.begin(), parameter.names.end());
  }
  const auto near = nearest_name(word, names);
  throw Error(ErrorCode::usage, field, "no parameter of the model fits '" + displayable(word, 80) + "'",
              near.empty() ? "* stands for any text; norms and biases are keywords"
                           : "did you mean " + displayable(near, 80) + "?");
}

// Empty: nothing is.
std::string wrong_in(const std::string& text) {
  if (text.empty()) return "it matches nothing: its text is empty";
  for (const auto& word : words_in(text)) {
    if (word.empty()) return "one of its patterns is empty";
    if (word.find(' ') != std::string::npos) return "'" + displayable(word, 80) + "' has a space in it";
  }
  return {};
}

std::vector<char> matched(const std::string& field, const ParameterMatch& match, const std::vector<Known>& parameters) {
  std::vector<char> those(parameters.size(), 0);
  if (match.test()) {
    for (std::size_t p = 0; p < those.size(); ++p)
      those[p] = match.test()(parameters[p].names.front(), parameters[p].tensor);
    if (std::find(those.begin(), those.end(), 1) == those.end())
      throw Error(ErrorCode::usage, field, "its function matches no parameter of the model", "leave the rule out");
    return those;
  }
  if (auto wrong = wrong_in(match.text()); !wrong.empty())
    throw Error(ErrorCode::usage, field, wrong, "norms, biases, or globs of names, with commas between them");
  for (const auto& word : words_in(match.text())) {
    refuse_unfit(field, word, parameters);
    for (std::size_t p = 0; p < those.size(); ++p) those[p] |= word_fits(word, parameters[p]);
  }
  return those;
}

void check_rule(const std::string& field, const ParameterRule& rule) {
  if (!std::isfinite(rule.lr_scale) || rule.lr_scale < 0)
    throw Error(ErrorCode::usage, field, formatted("lr_scale is %g", rule.lr_scale), "it must be 0 or more");
  if (!std::isfinite(rule.weight_decay))
    throw Error(ErrorCode::usage, field, formatted("weight_decay is %g", rule.weight_decay),
                "it must be 0 or more, or negative for the config's");
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(const torch::nn::Module& model, const OptimizerOptions& options,
                                             const ParameterRules& rules) {
  const auto parameters = known_parameters(model);
  std::vector<std::vector<char>> of_rules;
  for (std::size_t r = 0; r < rules.size(); ++r) {
    const auto field = "parameter group " + std::to_string(r + 1);
    check_rule(field, rules[r]);
    of_rules.push_back(matched(field, rules[r].match, parameters));
  }
  const auto undecayed = options.no_decay.empty() ? std::vector<char>(parameters.size(), 0)
                                                  : matched("no_decay", options.no_decay, parameters);
  std::vector<ParameterGroup> groups(1);
  std::map<std::pair<double, double>, std::size_t> places{{{1, -1}, 0}};
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto& parameter = parameters[p];
    if (!parameter.tensor.requires_grad()) continue;
    double scale = 1, decay = -1;
    for (std::size_t r = 0; r < rules.size(); ++r) {
      if (of_rules[r][p] == 0) continue;
      scale = rules[r].lr_scale;
      decay = rules[r].weight_decay < 0 ? -1 : rules[r].weight_decay;
      break;
    }
    if (decay < 0 && undecayed[p] != 0) decay = 0;
    const auto [place, is_new] = places.emplace(std::pair(scale, decay), groups.size());
    if (is_new) groups.push_back({{}, scale, decay});
    groups[place->second].parameters.emplace_back(parameter.names.front(), parameter.tensor);
  }
  if (groups.size() > 1 && groups.front().parameters.empty()) groups.erase(groups.begin());
  return groups;
}

}  // namespace troupe
