#include "actors/rank/sharded_dtypes.hpp"

#include "tensor_io/base/error.hpp"

namespace troupe {

void refuse_sharded_dtypes(const StrategyOptions& options, const std::string& strategy) {
  const auto refuse = [&](const char* field, const std::string& dtype, const char* remedy) {
    if (dtype == "float32") return;
    throw Error(ErrorCode::usage, field,
                dtype + " needs sharded parameters, and " + strategy + " keeps them whole, in the model's dtype",
                remedy);
  };
  refuse("param_dtype", options.param_dtype,
         "use --strategy fsdp --fsdp_mode no_shard for whole float32 masters on each rank, or use_amp for autocast");
  refuse("reduce_dtype", options.reduce_dtype, "use --comm_hook bf16 or fp16 with ddp, or --strategy fsdp");
  refuse("buffer_dtype", options.buffer_dtype, "use --strategy fsdp, or leave it out");
}

}  // namespace troupe
