#include "launch/config_fields.hpp"

namespace troupe {
namespace {

constexpr double kMany = 1e15;

template <class T, class Owner>
ConfigMember at(T Owner::*member) {
  return static_cast<T Config::*>(member);
}

}  // namespace

const std::vector<ConfigField>& config_fields() {
  static const std::vector<ConfigField> fields{
      {"data", "data", at(&Config::data), "the data set", 0, 0, {"synthetic", "digits", "mnist", "cifar10", "csv"}},
      {"data", "data_dir", at(&Config::data_dir), "its file or folder; digits: empty finds the one that is shipped", 0, 0, {}, false},
      {"data", "batch_size", at(&Config::batch_size), "samples of one optimizer step, over all ranks and micro-batches", 1, kMany},
      {"data", "num_workers", at(&Config::num_workers), "loader threads of a rank; 0: the loader's own", 0, 256, {}, false},
      {"data", "prefetch", at(&Config::prefetch), "batches that a loader may be ahead", 1, 1024, {}, false},
      {"data", "shuffle", at(&Config::shuffle), "shuffle by (seed, epoch)"},
      {"data", "drop_last", at(&Config::drop_last), "drop the last, smaller batch of an epoch instead of padding it"},
      {"data", "augment", at(&Config::augment), "random crop and flip, a function of (seed, epoch, sample)"},
      {"data", "num_classes", at(&Config::num_classes), "classes of the model's output", 2, kMany},
      {"data", "in_channels", at(&Config::in_channels), "channels of an image", 1, 4096},
      {"data", "image_size", at(&Config::image_size), "images are resized to this many pixels a side; 0: as they are", 0, 65536},
      {"data", "synthetic_size", at(&Config::synthetic_size), "images of the synthetic set", 1, kMany},

      {"optimizer", "optimizer", at(&Config::optimizer), "sgd or adamw, fused", 0, 0, {"sgd", "adamw"}},
      {"optimizer", "lr", at(&Config::lr), "learning rate", 0, 1e6},
      {"optimizer", "momentum", at(&Config::momentum), "of sgd", 0, 1},
      {"optimizer", "nesterov", at(&Config::nesterov), "Nesterov momentum"},
      {"optimizer", "weight_decay", at(&Config::weight_decay), "L2 for sgd, decoupled for adamw", 0, 1e6},
      {"optimizer", "beta1", at(&Config::beta1), "of adamw", 0, 0.999999},
      {"optimizer", "beta2", at(&Config::beta2), "of adamw", 0, 0.99999999},
      {"optimizer", "eps", at(&Config::eps), "of adamw", 0, 1},
      {"optimizer", "schedule", at(&Config::schedule), "of the learning rate, after the warm-up", 0, 0, {"constant", "cosine", "step"}},
      {"optimizer", "warmup_steps", at(&Config::warmup_steps), "steps of linear warm-up", 0, kMany},
      {"optimizer", "lr_min", at(&Config::lr_min), "where cosine ends", 0, 1e6},
      {"optimizer", "lr_step_epochs", at(&Config::lr_step_epochs), "step: every so many epochs ...", 1, kMany},
      {"optimizer", "lr_step_factor", at(&Config::lr_step_factor), "... the rate is multiplied by this", 0, 1},
      {"optimizer", "label_smoothing", at(&Config::label_smoothing), "of the cross entropy", 0, 0.999},

      {"training", "epochs", at(&Config::epochs), "passes over the data", 1, kMany},
      {"training", "max_steps", at(&Config::max_steps), "stop after so many optimizer steps; 0: no limit", 0, kMany},
      {"training", "grad_accum_steps", at(&Config::grad_accum_steps), "micro-batches of one optimizer step", 1, 65536},
      {"training", "use_amp", at(&Config::use_amp), "autocast around forward and loss"},
      {"training", "amp_dtype", at(&Config::amp_dtype), "of autocast", 0, 0, {"bf16", "fp16"}},
      {"training", "loss_scaler", at(&Config::loss_scaler), "dynamic loss scaling; auto: with fp16 autocast", 0, 0, {"auto", "on", "off"}},
      {"training", "loss_scale_init", at(&Config::loss_scale_init), "the loss scale at the start", 1e-30, 1e30},
      {"training", "loss_scale_growth", at(&Config::loss_scale_growth), "it grows by this factor ...", 1, 1e6},
      {"training", "loss_scale_interval", at(&Config::loss_scale_interval), "... after so many steps without overflow", 1, kMany},
      {"training", "loss_scale_backoff", at(&Config::loss_scale_backoff), "it shrinks by this factor after a step that overflowed", 1e-6,
       1},
      {"training", "activation_checkpointing", at(&Config::activation_checkpointing),
       "blocks that compute their forward again in backward: none, block, every:N, type:NAME, name:PATTERN, numel:COUNT"},
      {"training", "clip_norm", at(&Config::clip_norm), "clip the gradient's global norm; 0: don't", 0, 1e9},
      {"training", "on_not_finite", at(&Config::on_not_finite), "a step whose loss or gradient is NaN or infinite", 0, 0, {"stop", "skip"}},
      {"training", "verify_every", at(&Config::verify_every), "steps between two comparisons of all replicas' parameters; 0: never", 0,
       kMany},
      {"training",
       "on_divergence",
       at(&Config::on_divergence),
       "replicas that differ: heal from more than half of the ranks, else stop; rank_0: else rank 0 is right; or always stop",
       0,
       0,
       {"heal", "rank_0", "stop"}},
      {"training", "seed", at(&Config::seed), "of everything random", 0, 9e18},
      {"training", "validate_every", at(&Config::validate_every), "epochs between two validations; 0: never", 0, kMany},

      {"checkpoint", "checkpoint_dir", at(&Config::checkpoint_dir), "where checkpoints go", 0, 0, {}, false},
      {"checkpoint", "save_every", at(&Config::save_every), "steps between two checkpoints; 0: only at the end; -1: never", -1, kMany},
      {"checkpoint", "keep_last", at(&Config::keep_last), "checkpoints to keep, `best` not counted", 1, 1e6},
      {"checkpoint", "snapshot_every", at(&Config::snapshot_every),
       "steps between two copies of a sharded rank's state in another's memory, from which the job goes on when one dies; 0: none", 0,
       kMany},
      {"checkpoint", "staging_limit_mb", at(&Config::staging_limit_mb),
       "memory for the copy of a rank's part while it is written; what does not fit is written before training goes on", 0, 1e9},
      {"checkpoint", "resume", at(&Config::resume), "`latest`, or a checkpoint's path"},
      {"checkpoint", "init_from", at(&Config::init_from),
       "the model's first values: a .safetensors or torch.save file, or a checkpoint; not used where a run is resumed"},
      {"checkpoint", "init_rename", at(&Config::init_rename), "old=new,...: beginnings of names in that file and what they are here"},
      {"checkpoint", "init_allow_missing", at(&Config::init_allow_missing), "take from that file what fits, leave the rest as it is"},

      {"strategy", "strategy", at(&Config::strategy), "how parameters are laid out over ranks"},
      {"strategy", "bucket_cap_mb", at(&Config::bucket_cap_mb), "MiB of gradients in a bucket", 1e-6, 1e6},
      {"strategy", "first_bucket_mb", at(&Config::first_bucket_mb), "MiB in the bucket that fills first", 1e-6, 1e6},
      {"strategy", "broadcast_buffers", at(&Config::broadcast_buffers), "rank 0's buffers to all before each step"},
      {"strategy", "static_graph", at(&Config::static_graph), "promise: every step uses the same parameters in the same order"},
      {"strategy", "sync_batchnorm", at(&Config::sync_batchnorm), "BatchNorm statistics over all ranks"},
      {"strategy", "comm_hook", at(&Config::comm_hook), "none, fp16, bf16, powersgd, or one of your own"},
      {"strategy", "powersgd_rank", at(&Config::powersgd_rank), "rank of PowerSGD's approximation", 1, 1024},
      {"strategy", "powersgd_start_step", at(&Config::powersgd_start_step), "steps before this one send gradients whole", 0, kMany},
      {"strategy", "fsdp_mode", at(&Config::fsdp_mode), "of fsdp", 0, 0, {"full_shard", "shard_grad_op", "hybrid_shard", "no_shard"}},
      {"strategy", "fsdp_wrap", at(&Config::fsdp_wrap), "units of fsdp: block, type:T, numel:N, name:PATH, none"},
      {"strategy", "fsdp_shard_size", at(&Config::fsdp_shard_size), "hybrid_shard: ranks that share one copy; 0: those of a host", 0,
       65536},
      {"strategy", "fsdp_mapped", at(&Config::fsdp_mapped), "shards in memory that all ranks of a host map, where they can"},
      {"strategy", "deferred_init", at(&Config::deferred_init),
       "build the model without memory: a sharded strategy gives one unit after the other its values, the same ones"},
      {"strategy", "fsdp_prefetch", at(&Config::fsdp_prefetch), "units gathered ahead", 0, 1024},
      {"strategy", "fsdp_prefetch_mb", at(&Config::fsdp_prefetch_mb), "MiB that units gathered ahead may take", 1e-6, 1e6},
      {"strategy", "fsdp_sync_micro_batches", at(&Config::fsdp_sync_micro_batches), "reduce gradients after each micro-batch"},
      {"strategy",
       "param_dtype",
       at(&Config::param_dtype),
       "of forward and backward in sharded strategies",
       0,
       0,
       {"float32", "bfloat16", "float16"}},
      {"strategy", "reduce_dtype", at(&Config::reduce_dtype), "of gradients on their way", 0, 0, {"float32", "bfloat16", "float16"}},
      {"strategy", "buffer_dtype", at(&Config::buffer_dtype), "of floating-point buffers", 0, 0, {"float32", "bfloat16", "float16"}},

      {"communication", "backend", at(&Config::backend), "how ranks exchange tensors", 0, 0, {"auto", "shm", "gloo", "hierarchical"}},
      {"communication", "collective_timeout", at(&Config::collective_timeout), "seconds that a collective may wait for the others", 0.1,
       86400},

      {"run", "ranks", at(&Config::ranks), "ranks inside this process: a simulated cluster, for tests", 1, 64, {}, false},
      {"run", "threads", at(&Config::threads), "LibTorch's threads per rank; 0: one where ranks share the machine", 0, 4096, {}, false},
      {"run", "log_interval", at(&Config::log_interval), "steps between two log lines", 1, kMany, {}, false},
      {"run", "run_dir", at(&Config::run_dir), "logs and metrics.jsonl; empty: none", 0, 0, {}, false},
      {"run", "profile", at(&Config::profile), "print at the end where the time of rank 0's steps went", 0, 0, {}, false},
  };
  return fields;
}

}  // namespace troupe
