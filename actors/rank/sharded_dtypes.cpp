#include "actors/rank/sharded_dtypes.hpp"

#include "tensor_io/base/error.hpp"

namespace troupe {

void refuse_sharded_dtypes(const StrategyOptions& options, const std::string& strategy) {
  const auto refuse = [&](const char* field, const std::string& dtype, const char* remedy) {
    if (dtype == "float32") return;
    throw Error(ErrorCode::usage, field,
                dtype + " is for shards, and " + strategy + " keeps whole parameters as they are", remedy);
  };
  refuse("param_dtype", options.param_dtype,
         "--strategy fsdp --fsdp_mode no_shard keeps float32 masters whole on each rank; use_amp computes by autocast");
  refuse("reduce_dtype", options.reduce_dtype,
         "with ddp --comm_hook bf16 or fp16 sends gradients so; or --strategy fsdp");
  refuse("buffer_dtype", options.buffer_dtype, "--strategy fsdp, or leave it out");
}

}  // namespace troupe
