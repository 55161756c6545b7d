#pragma once
#include <map>
#include <string>
#include <vector>

#include "strategies/sharded/sharded_parameters.hpp"
#include "tensor_io/checkpoint/state_parts.hpp"
#include "tensor_io/checkpoint/state_reader.hpp"
#include "tensor_io/optimizer/optimizer.hpp"

namespace troupe {

/// Shards as checkpoints have them: rows of whole tensors, `model.NAME` and `optimizer.PARAMETER.SLOT`, under the names
/// that they have without sharding.

/// Who writes what all ranks, or all replicas of a shard, have alike.
struct StateWriter {
  int rank = 0, world_size = 1;
  int replica = 0, replicas = 1;
};

/// The rows that begin in this rank's shard, with the rest of the last one, and this rank's share of the rest.
/// Collective over the parameters' group. `optimizer` has this rank's slices.
std::vector<TensorPart> parts_of_shards(const torch::nn::Module& model, ShardedParameters& parameters,
                                        Optimizer& optimizer, const StateWriter& writer);

/// Reads this rank's slices, moments and all buffers. `optimizer` has this rank's slices; publish follows. Throws
/// Error(mismatch) if the saved model is another one, or a moment has not the shape of its parameter.
void read_shards(const StateReader& state, torch::nn::Module& model, const ShardedParameters& parameters,
                 Optimizer& optimizer);

/// The moments that the ranks of a group have, by name, without scalars. Collective.
std::map<std::string, at::ScalarType> moment_types(Optimizer& optimizer, Communicator& group);

/// The entries of `map`, by name, that belong to a parameter: its name, a dot, and more.
template <class Map>
Map entries_of(const Map& map, const std::string& parameter) {
  return Map(map.lower_bound(parameter + "."), map.lower_bound(parameter + "/"));  // '/' is the character behind '.'
}

}  // namespace troupe
