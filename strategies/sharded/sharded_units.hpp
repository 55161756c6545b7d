#pragma once
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "actors/block/block_calls.hpp"
#include "strategies/replicated/bucket_caps.hpp"
#include "strategies/sharded/sharded_parameters.hpp"
#include "tensor_io/layout/shard_plan.hpp"

namespace troupe {

/// Parameters that are gathered and freed, or reduced, together.
struct ShardedUnit {
  UnitMembers members;
  BlockCalls* block = nullptr;  ///< it comes and goes with the block's calls; nullptr: it has none
};

/// How a model is divided into units.
struct UnitRules {
  bool by_block = false;        ///< each block that `wrap` picks is one; else, and for the rest, they are like buckets
  std::string wrap;             ///< fsdp_wrap
  BucketCaps caps;              ///< of units that are like buckets
  std::set<std::string> apart;  ///< parameters that share no unit with others
};

/// The units of `parameters`, which are all of the model's or those that this rank's group holds. `layout`: of these
/// parameters, in their order; those without requires_grad are frozen. The same on all ranks. Throws as wrap_units.
std::vector<ShardedUnit> plan_units(const std::shared_ptr<torch::nn::Module>& model,
                                    std::span<const ShardedParameters::Parameter> parameters,
                                    std::span<const ParameterLayout> layout, const UnitRules& rules);

}  // namespace troupe
