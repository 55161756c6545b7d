#pragma once
#include <string_view>

#include "actors/compute/compute.hpp"
#include "tensor_io/layout/named_state.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// So the names of a state's tensors begin that are the model's.
inline constexpr std::string_view kModelPrefix = "model.";

/// The model's parameters and buffers, put together from what each rank would write into a checkpoint: on `root` by
/// name, in memory of their own and in the layout's order; nothing elsewhere. Collective, between steps; compute's
/// thread.
NamedTensors gathered_model(Compute& compute, Optimizer& optimizer, int root);

}  // namespace troupe
