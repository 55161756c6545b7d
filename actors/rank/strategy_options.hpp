#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// Selects the strategy, and sets the data-parallel ones.
struct StrategyOptions {
  std::string strategy = "ddp";
  std::string switch_at;                 ///< strategies to come, by step: 200:ddp+bf16,400:diloco
  double bucket_cap_mb = 0;              ///< MiB of gradients in a bucket; 0: 25 on a GPU, 5 on CPUs
  double first_bucket_mb = 1;            ///< MiB in the bucket that fills first
  bool early_update = false;             ///< ddp on CPUs: the optimizer updates a second copy as buckets are reduced
  bool broadcast_buffers = true;         ///< rank 0's buffers (BatchNorm's running statistics) to all before each step
  bool static_graph = false;             ///< promise that every step uses the same parameters in the same order
  bool sync_batchnorm = false;           ///< BatchNorm statistics over all ranks
  std::string comm_hook = "none";        ///< none, fp16, bf16, powersgd, or the name of a registered hook
  std::int64_t powersgd_rank = 2;        ///< columns of PowerSGD's factors
  std::int64_t powersgd_start_step = 0;  ///< steps before this one send gradients whole

  std::int64_t sync_every = 100;      ///< local_sgd, diloco: steps between two outer steps
  double outer_lr = 0.7;              ///< diloco: of the outer optimizer
  double outer_momentum = 0.9;        ///< diloco: Nesterov's, of the outer optimizer
  std::int64_t diloco_fragments = 1;  ///< parts of the model that have their outer steps in turn
  std::int64_t diloco_overlap = 0;    ///< steps that go on while a fragment is averaged
  double diloco_mixing = 0.5;         ///< with overlap: the share of a rank's own parameters that stays

  std::int64_t server_shares = 1;  ///< parameter_server: shares of an update's samples, for each rank
  std::int64_t staleness = 3;      ///< parameter_server: updates that a gradient may be behind; a step has one more

  std::string mesh;  ///< pipeline, tensor_parallel: dp=2,fsdp=2,pp=2; empty: all ranks in one pipeline or group
  std::string pipeline_schedule = "1f1b";  ///< gpipe, 1f1b, interleaved, zero_bubble, or a registered one
  std::int64_t pipeline_chunks = 1;        ///< interleaved: stages on each rank
  std::string pipeline_costs =
      "parameters";         ///< costs that balance the stages: parameters, measured, or a cost for each block
  std::string tensor_plan;  ///< tensor_parallel: which layers are shared, and how (strategies/mesh/tensor_plan.hpp)
  bool sequence_parallel = false;  ///< between shared layers each rank has its own part of the tokens

  std::string fsdp_mode = "full_shard";  ///< full_shard, shard_grad_op, hybrid_shard, no_shard
  std::string fsdp_wrap = "block";       ///< the modules that are units (actors/block/wrap_policy.hpp)
  std::int64_t fsdp_shard_size = 0;      ///< hybrid_shard: ranks that share one copy; 0: those of a host
  bool deferred_init = false;  ///< the framework builds the model without memory; units get their values in turn
  bool fsdp_mapped = true;     ///< shards in memory that all ranks of a host map, if they can
  bool fsdp_cpu_offload =
      false;  ///< on a device: shards, their gradients and the optimizer's state in the host's memory
  std::int64_t fsdp_prefetch =
      2;  ///< units gathered ahead: a block within a block counts as one, and both are requested at once
  double fsdp_prefetch_mb = 512;         ///< MiB that units gathered ahead may take
  bool fsdp_sync_micro_batches = false;  ///< reduce after each micro-batch instead of keeping whole gradients
  std::string param_dtype = "float32";   ///< of forward and backward in sharded strategies; the master stays as it is
  std::string reduce_dtype = "float32";  ///< of gradients on their way
  std::string buffer_dtype = "float32";  ///< of floating-point buffers
};

}  // namespace troupe
