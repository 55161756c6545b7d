#include "actors/block/wrap_policy.hpp"

#include <algorithm>
#include <unordered_map>

#include "tensor_io/base/error.hpp"
#include "tensor_io/base/number_of.hpp"

namespace troupe {
namespace {

constexpr const char* kKnownPolicies = "known: none, block, type:NAME, numel:COUNT, name:PATTERN";

std::vector<std::string> split(std::string_view list, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const auto end = list.find(separator);
    parts.emplace_back(list.substr(0, end));
    if (end == std::string_view::npos) return parts;
    list.remove_prefix(end + 1);
  }
}

/// A module of the model, once, under its first path.
struct Node {
  std::string path;
  std::shared_ptr<torch::nn::Module> module;
  BlockCalls* block = nullptr;
  std::size_t parent = 0;
  std::vector<std::size_t> children;
  bool unit = false;
};

struct Tree {
  std::vector<Node> nodes;  // parents before children, the model first
  std::unordered_map<const torch::nn::Module*, std::size_t> places;
  std::vector<std::pair<std::size_t, std::size_t>> second_uses;  // (parent, node) of modules that are registered again
};

std::string join_path(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

void add_to_tree(Tree& tree, const std::shared_ptr<torch::nn::Module>& module, const std::string& path,
                 std::size_t parent) {
  const auto place = tree.nodes.size();
  tree.places[module.get()] = place;
  tree.nodes.push_back({path, module, dynamic_cast<BlockCalls*>(module.get()), parent, {}, false});
  if (place != parent) tree.nodes[parent].children.push_back(place);
  for (const auto& child : module->named_children()) {
    if (const auto seen = tree.places.find(child.value().get()); seen != tree.places.end()) {
      tree.second_uses.emplace_back(place, seen->second);
    } else {
      add_to_tree(tree, child.value(), join_path(path, child.key()), place);
    }
  }
}

bool fits(const Node& node, const WrapPolicy& policy, const std::string& pattern) {
  if (policy.by == WrapPolicy::By::name) return matches_path(pattern, node.path);
  const auto type = node.block != nullptr ? node.block->block_type() : plain_type_name(node.module->name());
  return type == pattern;
}

std::string what_there_is(const Tree& tree, WrapPolicy::By by) {
  std::vector<std::string> known;
  for (const auto& node : tree.nodes) {
    if (node.block == nullptr || node.path.empty()) continue;
    const auto text = by == WrapPolicy::By::type ? node.block->block_type() : node.path;
    if (std::find(known.begin(), known.end(), text) == known.end()) known.push_back(text);
  }
  if (known.empty()) return "the model has no blocks: declare its layers with TROUPE_BLOCK";
  constexpr std::size_t kShown = 12;
  std::string text = "its blocks: ";
  for (std::size_t i = 0; i < std::min(kShown, known.size()); ++i) text += (i ? ", " : "") + known[i];
  return known.size() > kShown ? text + ", …" : text;
}

void pick_matching(Tree& tree, const WrapPolicy& policy) {
  const std::string kind = policy.by == WrapPolicy::By::type ? "type" : "name";
  for (const auto& pattern : policy.patterns) {
    bool found = false;
    for (auto& node : tree.nodes) {
      if (node.path.empty() || !fits(node, policy, pattern)) continue;
      if (node.block == nullptr) {
        throw Error(ErrorCode::usage, "fsdp_wrap=" + kind + ":" + pattern,
                    "the module " + node.path + " (" + plain_type_name(node.module->name()) +
                        ") is not a block, so its call can't be hooked",
                    "declare it with TROUPE_BLOCK instead of TORCH_MODULE, or hold it as troupe::Block<…Impl>");
      }
      node.unit = found = true;
    }
    if (!found) {
      throw Error(ErrorCode::usage, "fsdp_wrap=" + kind + ":" + pattern, "no module of the model has this " + kind,
                  what_there_is(tree, policy.by));
    }
  }
}

// Bottom-up. Returns how many parameters of the subtree no unit has taken; shared ones count where they are first.
std::int64_t pick_large(Tree& tree, std::size_t place, std::int64_t numel, std::vector<const void*>& counted) {
  std::int64_t rest = 0;
  for (const auto& parameter : tree.nodes[place].module->named_parameters(/*recurse=*/false)) {
    const void* identity = parameter.value().unsafeGetTensorImpl();
    if (std::find(counted.begin(), counted.end(), identity) != counted.end()) continue;
    counted.push_back(identity);
    rest += parameter.value().numel();
  }
  for (const auto child : tree.nodes[place].children) rest += pick_large(tree, child, numel, counted);
  auto& node = tree.nodes[place];
  if (place == 0 || node.block == nullptr || rest < numel || rest == 0) return rest;
  node.unit = true;
  return 0;
}

/// Units around a module, from the model inwards.
std::vector<std::size_t> units_around(const Tree& tree, std::size_t place) {
  std::vector<std::size_t> units;
  for (;; place = tree.nodes[place].parent) {
    if (tree.nodes[place].unit) units.push_back(place);
    if (place == 0) break;
  }
  std::reverse(units.begin(), units.end());
  return units;
}

void keep_common(std::vector<std::size_t>& units, const std::vector<std::size_t>& others) {
  const auto end = std::mismatch(units.begin(), units.end(), others.begin(), others.end()).first;
  units.erase(end, units.end());
}

}  // namespace

WrapPolicy parse_wrap_policy(std::string_view text) {
  const auto colon = text.find(':');
  const auto kind = text.substr(0, colon);
  const auto value = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::usage, "fsdp_wrap=" + std::string(text), why, kKnownPolicies);
  };
  WrapPolicy policy;
  if (kind == "none" || kind == "block") {
    if (colon != std::string_view::npos) throw refuse("'" + std::string(kind) + "' takes no value");
    policy.by = kind == "none" ? WrapPolicy::By::none : WrapPolicy::By::block;
  } else if (kind == "numel") {
    policy.by = WrapPolicy::By::numel;
    policy.numel = number_of<std::int64_t>(value).value_or(0);
    if (policy.numel < 1) throw refuse("'" + std::string(value) + "' is not a positive whole number");
  } else if (kind == "type" || kind == "name") {
    policy.by = kind == "type" ? WrapPolicy::By::type : WrapPolicy::By::name;
    policy.patterns = split(value, ',');
    if (std::find(policy.patterns.begin(), policy.patterns.end(), "") != policy.patterns.end())
      throw refuse("one of its names is empty");
  } else {
    throw refuse("there is no policy '" + std::string(kind) + "'");
  }
  return policy;
}

bool matches_path(std::string_view pattern, std::string_view path) {
  const auto first_of = [](std::string_view text) { return text.substr(0, text.find('.')); };
  const auto rest_of = [](std::string_view text) {
    const auto dot = text.find('.');
    return dot == std::string_view::npos ? std::string_view{} : text.substr(dot + 1);
  };
  if (pattern.empty() || path.empty()) return pattern.empty() && path.empty();
  const auto part = first_of(pattern);
  if (part == "**") {
    const auto more = rest_of(pattern);
    if (more.empty()) return true;
    for (auto tail = path; !tail.empty(); tail = rest_of(tail)) {
      if (matches_path(more, tail)) return true;
    }
    return false;
  }
  return (part == "*" || part == first_of(path)) && matches_path(rest_of(pattern), rest_of(path));
}

std::vector<WrapUnit> wrap_units(const std::shared_ptr<torch::nn::Module>& model, const WrapPolicy& policy) {
  name_blocks(*model);
  Tree tree;
  add_to_tree(tree, model, "", 0);
  if (policy.by == WrapPolicy::By::block) {
    for (auto& node : tree.nodes) node.unit = node.block != nullptr;
  } else if (policy.by == WrapPolicy::By::numel) {
    std::vector<const void*> counted;
    pick_large(tree, 0, policy.numel, counted);
  } else if (policy.by != WrapPolicy::By::none) {
    pick_matching(tree, policy);
  }
  tree.nodes[0].unit = true;

  // A module that is registered a second time is used by the units around both places.
  std::vector<std::vector<std::size_t>> around(tree.nodes.size());
  for (std::size_t place = 0; place < tree.nodes.size(); ++place) around[place] = units_around(tree, place);
  for (const auto& [parent, node] : tree.second_uses) {
    if (tree.nodes[node].unit) continue;  // it gathers its own, whoever calls it
    for (std::size_t place = 0; place < tree.nodes.size(); ++place) {
      auto inside = place;
      while (inside != node && inside != 0 && !tree.nodes[inside].unit) inside = tree.nodes[inside].parent;
      if (inside == node) keep_common(around[place], around[parent]);
    }
  }

  std::vector<UnitParameter> parameters;
  std::vector<std::vector<std::size_t>> units_of;
  std::unordered_map<const void*, std::size_t> known;
  for (std::size_t place = 0; place < tree.nodes.size(); ++place) {
    for (const auto& item : tree.nodes[place].module->named_parameters(/*recurse=*/false)) {
      const auto name = join_path(tree.nodes[place].path, item.key());
      const auto [entry, is_new] = known.try_emplace(item.value().unsafeGetTensorImpl(), parameters.size());
      if (is_new) {
        parameters.push_back({name, item.value(), {}});
        units_of.push_back(around[place]);
      } else {
        parameters[entry->second].aliases.push_back(name);
        keep_common(units_of[entry->second], around[place]);
      }
    }
  }

  std::vector<WrapUnit> units;
  std::unordered_map<std::size_t, std::size_t> unit_at;
  for (std::size_t place = 0; place < tree.nodes.size(); ++place) {
    const auto& node = tree.nodes[place];
    const bool has_own =
        std::any_of(units_of.begin(), units_of.end(), [&](const auto& list) { return list.back() == place; });
    if (!node.unit || (place != 0 && !has_own)) continue;
    unit_at[place] = units.size();
    units.push_back({node.path, node.module, node.block, {}});
  }
  for (std::size_t i = 0; i < parameters.size(); ++i)
    units[unit_at.at(units_of[i].back())].parameters.push_back(std::move(parameters[i]));
  return units;
}

}  // namespace troupe
