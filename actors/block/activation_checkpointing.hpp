#pragma once
#include <torch/nn/module.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace troupe {

/// Blocks that keep only their inputs in forward and compute the rest again in backward (Chen et al., "Training Deep
/// Nets with Sublinear Memory Cost", 2016). `policy`:
///
///     none                     no block
///     block                    the outermost blocks below the model
///     every:N                  of these the first, the one N further on, and so on
///     type:…, name:…, numel:…  as in a WrapPolicy
///
/// Returns how many blocks do it from now on; others stop. Throws Error(usage) as parse_wrap_policy and wrap_units.
///
/// The second run is the first one again: random numbers of LibTorch's generators (the CPU's and the device's) and of
/// troupe::nn::Dropout, autocast, and the buffers that forward changes are brought back, so gradients are equal bit by
/// bit, and BatchNorm's statistics move once. It runs when the first gradient enters the block, after its
/// before_backward hooks; the graph is the first run's, so that each parameter gets its gradient once however many
/// blocks share it, which DDP's buckets rely on. (PyTorch calls this the non-reentrant kind.) A block called inside one
/// that does it is recomputed with that one. Under NoGradGuard nothing is kept and nothing recomputed.
///
/// What forward does must depend on its arguments, parameters and buffers alone. Backward throws Error(usage) naming
/// the block where it sees that the second run was another one, where an input was changed in place since, or where
/// train()/eval() was called in between.
std::size_t checkpoint_activations(const std::shared_ptr<torch::nn::Module>& model, const std::string& policy);

/// The path of the first stock module in a checkpointed block that draws from LibTorch's generator in training. Ranks
/// that share a process share the CPU's and can't bring its state back for one of them; of devices each has its own.
std::optional<std::string> stock_random_module(torch::nn::Module& model);

}  // namespace troupe
