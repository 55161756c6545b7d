#include "strategies/sharded/sharded_units.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "actors/block/wrap_policy.hpp"

namespace troupe {
namespace {

using Indices = std::vector<std::int32_t>;

class UnitPlanner {
 public:
  UnitPlanner(std::span<const ParameterLayout> layout, const UnitRules& rules) : layout_(layout), rules_(rules) {}

  bool is_apart(std::int32_t parameter) const {
    return rules_.apart.contains(layout_[static_cast<std::size_t>(parameter)].name);
  }
  void add_block(const std::string& name, BlockCalls* block, Indices parameters) {
    units_.push_back({{name, std::move(parameters)}, block});
  }
  void add_buckets(const Indices& parameters) {
    Indices apart, others;
    for (const auto p : parameters) (is_apart(p) ? apart : others).push_back(p);
    for (const auto& some : {apart, others}) {
      if (!some.empty()) cut_into_buckets(some);
    }
  }
  std::vector<ShardedUnit> take() { return std::move(units_); }

 private:
  // Units as large as buckets, in the order of forward.
  void cut_into_buckets(const Indices& parameters) {
    std::vector<ParameterLayout> shape;
    shape.reserve(parameters.size());
    for (const auto p : parameters) shape.push_back(layout_[static_cast<std::size_t>(p)]);
    const auto plan =
        plan_buckets(shape, registration_order(shape), rules_.caps.cap_bytes, rules_.caps.first_cap_bytes);
    for (std::size_t b = plan.buckets.size(); b-- > 0;) {
      Indices members;
      for (const auto& slot : plan.buckets[b].slots)
        members.push_back(parameters[static_cast<std::size_t>(slot.parameter)]);
      add_block("bucket " + std::to_string(b), nullptr, std::move(members));
    }
    Indices frozen;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (!shape[i].requires_grad) frozen.push_back(parameters[i]);
    }
    if (!frozen.empty()) add_block("frozen", nullptr, std::move(frozen));
  }

  std::span<const ParameterLayout> layout_;
  const UnitRules& rules_;
  std::vector<ShardedUnit> units_;
};

}  // namespace

std::vector<ShardedUnit> plan_units(const std::shared_ptr<torch::nn::Module>& model,
                                    std::span<const ShardedParameters::Parameter> parameters,
                                    std::span<const ParameterLayout> layout, const UnitRules& rules) {
  UnitPlanner planner(layout, rules);
  if (!rules.by_block) {
    Indices all(parameters.size());
    std::iota(all.begin(), all.end(), 0);
    planner.add_buckets(all);
    return planner.take();
  }
  std::map<const c10::TensorImpl*, std::int32_t> index;
  for (std::size_t p = 0; p < parameters.size(); ++p)
    index[parameters[p].tensor.unsafeGetTensorImpl()] = static_cast<std::int32_t>(p);
  for (const auto& wrapped : wrap_units(model, parse_wrap_policy(rules.wrap))) {
    Indices members;
    for (const auto& parameter : wrapped.parameters) {
      const auto found = index.find(parameter.tensor.unsafeGetTensorImpl());
      if (found != index.end()) members.push_back(found->second);  // else other ranks hold it
    }
    const bool has_apart = std::any_of(members.begin(), members.end(), [&](auto p) { return planner.is_apart(p); });
    if (wrapped.block == nullptr || has_apart) {  // the root's
      planner.add_buckets(members);
    } else if (!members.empty()) {
      planner.add_block(wrapped.name, wrapped.block, std::move(members));
    }
  }
  return planner.take();
}

}  // namespace troupe
