#include "strategies/sharded/sharded_mode.hpp"

#include "tensor_io/base/error.hpp"

namespace troupe {

ShardedMode sharded_mode(const StrategyOptions& options) {
  if (options.strategy == "zero1") return {.name = "zero1", .keep_whole_gradients = true};
  if (options.strategy == "zero2") return {.name = "zero2"};
  const auto& mode = options.fsdp_mode;
  if (mode == "full_shard") return {.name = mode, .gathers_units = true, .reshard_after_forward = true};
  if (mode == "shard_grad_op") return {.name = mode, .gathers_units = true};
  if (mode == "hybrid_shard")
    return {.name = mode, .gathers_units = true, .reshard_after_forward = true, .has_replicas = true};
  if (mode == "no_shard") return {.name = mode, .keep_whole_gradients = true, .gathers_units = true, .shards = false};
  throw Error(ErrorCode::usage, "fsdp_mode", "there is no mode '" + mode + "'",
              "known: full_shard, shard_grad_op, hybrid_shard, no_shard");
}

}  // namespace troupe
