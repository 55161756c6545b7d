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
/// Returns the number of blocks that do it from now on; others stop. Throws as parse_wrap_policy and wrap_units.
///
/// The second run repeats the first. The random numbers of LibTorch's generators (the CPU's and the device's) and of
/// troupe::nn::Dropout, autocast, and the buffers that forward changes are brought back. So gradients are equal bit by
/// bit, and BatchNorm's statistics move once. The second run begins when the first gradient enters the block, after its
/// before_backward hooks. The graph is the first run's: each parameter gets its gradient once, however many blocks
/// share it, and DDP's buckets rely on that. (PyTorch calls this kind non-reentrant.) A block called inside a
/// checkpointed one is recomputed with it. Under NoGradGuard nothing is kept and nothing recomputed.
///
/// Forward must depend on its arguments, parameters and buffers alone. Backward throws Error(usage) with the block's
/// name if the second run differs from the first, if an input was changed in place since, or if train()/eval() was
/// called in between.
std::size_t checkpoint_activations(const std::shared_ptr<torch::nn::Module>& model, const std::string& policy);

/// The path of the first stock module in a checkpointed block that draws from LibTorch's generator in training. Ranks
/// of one process share the CPU's and can't bring its state back for one of them; each device has its own.
std::optional<std::string> stock_random_module(torch::nn::Module& model);

}  // namespace troupe
