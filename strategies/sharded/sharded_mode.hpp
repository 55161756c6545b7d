#pragma once
#include <set>
#include <string>

#include "actors/rank/strategy_options.hpp"

namespace troupe {

/// The differences between the sharded strategies.
struct ShardedMode {
  std::string name;  ///< zero1, zero2, full_shard ...
  bool keep_whole_gradients = false;
  bool gathers_units = false;  ///< parameters are whole only around their unit's calls, if memory is not common
  bool reshard_after_forward = false;
  bool has_replicas = false;  ///< shards of the ranks of a host, or of fsdp_shard_size ranks, and replicas of that
  bool shards = true;         ///< false: each rank holds everything
  bool keeps_units =
      false;  ///< gathered ones stay until the step's end: a pipeline's micro-batches are under way at once
  bool meets_in_backward = false;  ///< a rank comes to the end of its backward only if the others go on with theirs
};

/// The mode that the options name. Throws Error(usage).
ShardedMode sharded_mode(const StrategyOptions& options);

/// The model's parameters, by name, if the ranks hold only a part of it: a mesh has cut it.
struct ShardedPart {
  std::set<std::string> elsewhere;  ///< that other ranks hold: not touched
  std::set<std::string> apart;      ///< in separate units, so that they lie alike even if the rest differs
  bool is_cut = false;              ///< the mesh itself checks all ranks' gradients
};

}  // namespace troupe
