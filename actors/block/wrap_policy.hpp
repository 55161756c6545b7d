#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/block/block_calls.hpp"

namespace troupe {

/// The modules of a model that become units. As text:
///
///     block                    every block
///     type:TransformerBlock    modules of these types (without namespace and `Impl`), several with commas
///     numel:1000000            blocks with at least 1,000,000 parameters that no block inside has taken
///     name:layers.*,head       modules with these paths; `*` stands for one name, `**` for any number of them
///     none                     no module: the model is one unit
struct WrapPolicy {
  enum class By { none, block, type, numel, name };
  By by = By::block;                  ///< the criterion
  std::vector<std::string> patterns;  ///< types or paths
  std::int64_t numel = 0;             ///< with By::numel: the least number of elements
};

/// Throws Error(usage) naming what is wrong in `text`.
WrapPolicy parse_wrap_policy(std::string_view text);

/// A parameter of a unit.
struct UnitParameter {
  std::string name;                  ///< path in the model, the first one if it has several
  at::Tensor tensor;                 ///< the live one
  std::vector<std::string> aliases;  ///< its other paths
};

/// Parameters that are gathered, checkpointed or placed as one.
struct WrapUnit {
  std::string name;                           ///< path of the module; empty for the model itself
  std::shared_ptr<torch::nn::Module> module;  ///< whose calls are hooked
  BlockCalls* block = nullptr;                ///< the module's hooks; nullptr only for a model that is no block
  std::vector<UnitParameter> parameters;      ///< of the module, and of those below it that are in no inner unit
};

/// The units of a model: first the model itself, then those that the policy picks, in the order of registration, outer
/// ones before inner ones. Each parameter is in exactly one unit, the innermost around its module. A parameter that
/// several units use is in the innermost unit around all of them, so that it is there for each of them. Only the model
/// may be a unit without parameters. A block that is registered twice is one unit, under its first path. Names all
/// blocks (name_blocks).
///
/// Throws Error(usage) if a type or name matches nothing, with the names that there are. Throws it, too, for a module
/// that is no block: its call can't be hooked.
std::vector<WrapUnit> wrap_units(const std::shared_ptr<torch::nn::Module>& model, const WrapPolicy& policy);

/// Whether `path` fits `pattern`: `layers.*` fits layers.0, but not layers.0.attention; `layers.**` fits both.
bool matches_path(std::string_view pattern, std::string_view path);

}  // namespace troupe
