#pragma once
#include <cstdint>

#include "strategies/sharded/shard_copy.hpp"
#include "strategies/sharded/sharded_parameters.hpp"
#include "strategies/sharded/sliced_optimizers.hpp"

namespace troupe {

/// The tensors in a copy of this rank's shard: `flat.FLAT`, `moment.PARAMETER.BEGIN.SLOT` and `buffer.NAME`, with
/// numbers of flats and parameters, and the slice's first element. Live tensors. `buffers`: of the first rank of the
/// group; empty on the others.
NamedTensors tensors_of_shard(ShardedParameters& parameters, Optimizer& optimizer, const NamedTensors& buffers);

/// Takes the part of a copy of shard `shard` that is this rank's now, whatever the cut was. Moments wait in
/// `optimizers`; publish follows. Throws Error(bad_data) for a tensor that is not in this model.
void place_shard_tensors(const ShardCopy& copy, std::int32_t shard, torch::nn::Module& model,
                         ShardedParameters& parameters, SlicedOptimizers& optimizers);

}  // namespace troupe
