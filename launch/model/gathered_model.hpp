#pragma once
#include <string_view>

#include "actors/compute/compute.hpp"
#include "tensor_io/layout/named_state.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// The prefix of the model's tensors in a state.
inline constexpr std::string_view kModelPrefix = "model.";

/// The model's parameters and buffers, put together from the ranks' parts of a checkpoint: on `root` by
/// name, in new memory and in the layout's order; nothing elsewhere. Collective, between steps; compute's
/// thread.
NamedTensors gathered_model(Compute& compute, Optimizer& optimizer, int root);

}  // namespace troupe
