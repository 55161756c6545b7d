#include "launch/config/config_fields.hpp"

#include "actors/stragglers/batch_split.hpp"
#include "launch/config/profile_setting.hpp"
#include "strategies/switching/switch_plan.hpp"
#include "tensor_io/communicator/communicator_registry.hpp"
#include "tensor_io/data/dataset_registry.hpp"

namespace troupe {
namespace {

constexpr double kMany = 1e15;

template <class T, class Owner>
ConfigMember at(T Owner::*member) {
  return static_cast<T Config::*>(member);
}

std::string check_balance(const std::string& text) {
  Balance balance;
  return Balance::parse(text, balance);
}

std::string check_switches(const std::string& text) {
  std::vector<StrategyPhase> phases;
  return parse_switches(text, phases);
}

std::string check_profile(const std::string& text) {
  ProfileSetting setting;
  return parse_profile(text, setting);
}

// Ranks may differ in it.
ConfigField per_rank(ConfigField field) {
  field.shared = false;
  return field;
}

ConfigField one_of(std::vector<std::string> choices, ConfigField field) {
  field.choices = std::move(choices);
  return field;
}

ConfigField checked(std::string (*check)(const std::string&), const char* form, ConfigField field) {
  field.check = check;
  field.form = form;
  return field;
}

// What a text looks like that is checked later.
ConfigField formed(const char* form, ConfigField field) {
  field.form = form;
  return field;
}

// Its flag may have no value.
ConfigField may_stand_alone(ConfigField field) {
  field.may_stand_alone = true;
  return field;
}

}  // namespace

const std::vector<ConfigField>& config_fields() {
  static const std::vector<ConfigField> fields{
      {.section = "data",
       .name = "data",
       .member = at(&Config::data),
       .help = "the data set",
       .registered = known_datasets},
      per_rank({"data", "data_dir", at(&Config::data_dir),
                "its file or folder (webdataset: also name-{000000..000146}.tar); digits: empty finds the one that is "
                "shipped"}),
      {"data", "batch_size", at(&Config::batch_size), "samples of one optimizer step, over all ranks and micro-batches",
       1, kMany},
      per_rank({"data", "num_workers", at(&Config::num_workers), "loader threads per rank; 0: the loader's own thread",
                0, 256}),
      per_rank({"data", "prefetch", at(&Config::prefetch), "batches that a loader may load ahead", 1, 1024}),
      {"data", "shuffle", at(&Config::shuffle), "shuffle by (seed, epoch)"},
      {"data", "shuffle_buffer", at(&Config::shuffle_buffer), "webdataset: samples in the shuffle buffer of each lane",
       1, kMany},
      one_of({"stop", "skip"}, {"data", "on_bad_sample", at(&Config::on_bad_sample),
                                "a sample that cannot be read ends the job, or is skipped and counted"}),
      {"data", "drop_last", at(&Config::drop_last), "drop the last batch of an epoch if it is smaller"},
      {"data", "augment", at(&Config::augment), "random crop and flip, a function of (seed, epoch, sample)"},
      {"data", "num_classes", at(&Config::num_classes), "classes of the model's output", 2, kMany},
      {"data", "in_channels", at(&Config::in_channels), "channels of an image", 1, 4096},
      {"data", "image_size", at(&Config::image_size), "images are resized to this many pixels a side; 0: as they are",
       0, 65536},
      {"data", "synthetic_size", at(&Config::synthetic_size), "images of the synthetic set", 1, kMany},

      one_of({"sgd", "adamw"},
             {"optimizer", "optimizer", at(&Config::optimizer), "the optimizer, with a fused update"}),
      {"optimizer", "lr", at(&Config::lr), "learning rate", 0, 1e6},
      {"optimizer", "momentum", at(&Config::momentum), "of sgd", 0, 1},
      {"optimizer", "nesterov", at(&Config::nesterov), "Nesterov momentum"},
      {"optimizer", "weight_decay", at(&Config::weight_decay), "L2 for sgd, decoupled for adamw", 0, 1e6},
      {"optimizer", "no_decay", at(&Config::no_decay),
       "parameters without weight decay: norms, biases, globs of names (*.embedding.weight), with commas between them"},
      {"optimizer", "beta1", at(&Config::beta1), "of adamw", 0, 0.999999},
      {"optimizer", "beta2", at(&Config::beta2), "of adamw", 0, 0.99999999},
      {"optimizer", "eps", at(&Config::eps), "of adamw", 0, 1},
      one_of({"constant", "cosine", "step"},
             {"optimizer", "schedule", at(&Config::schedule), "of the learning rate, after the warm-up"}),
      {"optimizer", "warmup_steps", at(&Config::warmup_steps), "steps of linear warm-up", 0, kMany},
      {"optimizer", "lr_min", at(&Config::lr_min), "learning rate at the end of cosine", 0, 1e6},
      {"optimizer", "lr_step_epochs", at(&Config::lr_step_epochs), "step: after every N epochs ...", 1, kMany},
      {"optimizer", "lr_step_factor", at(&Config::lr_step_factor), "... the rate is multiplied by this", 0, 1},
      {"optimizer", "label_smoothing", at(&Config::label_smoothing),
       "of the cross entropy, if the program's loss reads it", 0, 0.999},

      {"training", "epochs", at(&Config::epochs), "passes over the data", 1, kMany},
      {"training", "max_steps", at(&Config::max_steps), "stop after this many optimizer steps; 0: no limit", 0, kMany},
      {"training", "grad_accum_steps", at(&Config::grad_accum_steps), "micro-batches of one optimizer step", 1, 65536},
      checked(check_balance, "equal, speed, or a weight for each rank (2,1)",
              {"training", "balance", at(&Config::balance),
               "how a step's samples are divided among ranks: equally, by measured speed, or by a weight for each "
               "rank; the global batch stays the same"}),
      {"training", "use_amp", at(&Config::use_amp), "autocast around forward and loss"},
      one_of({"bf16", "fp16"}, {"training", "amp_dtype", at(&Config::amp_dtype), "of autocast"}),
      one_of({"auto", "on", "off"},
             {"training", "loss_scaler", at(&Config::loss_scaler), "dynamic loss scaling; auto: with fp16 autocast"}),
      {"training", "loss_scale_init", at(&Config::loss_scale_init), "the loss scale at the start", 1e-30, 1e30},
      {"training", "loss_scale_growth", at(&Config::loss_scale_growth), "it grows by this factor ...", 1, 1e6},
      {"training", "loss_scale_interval", at(&Config::loss_scale_interval),
       "... after this many steps without overflow", 1, kMany},
      {"training", "loss_scale_backoff", at(&Config::loss_scale_backoff),
       "it shrinks by this factor after a step that overflowed", 1e-6, 1},
      formed("none, block, every:N, type:NAME, name:PATTERN, or numel:COUNT",
             {"training", "activation_checkpointing", at(&Config::activation_checkpointing),
              "blocks that compute their forward again in backward"}),
      {"training", "clip_norm", at(&Config::clip_norm), "clip the gradient's global norm; 0: don't", 0, 1e9},
      one_of({"stop", "skip"}, {"training", "on_not_finite", at(&Config::on_not_finite),
                                "a step whose loss or gradient is NaN or infinite"}),
      {"training", "max_skipped_steps", at(&Config::max_skipped_steps),
       "the job ends after this many skipped steps in a row; a step in which the loss scale falls is not counted; 0: "
       "no limit",
       0, kMany},
      one_of({"step", "late"},
             {"training", "vote", at(&Config::vote),
              "on a GPU: step: the host waits for the result of a step and then applies it; late: the GPU decides, and "
              "the host reads the result in the next step; only without recovery"}),
      {"training", "cuda_graphs", at(&Config::cuda_graphs),
       "on a GPU: capture forward and backward as a CUDA graph once their shapes have come three times, and replay it "
       "from then on; for strategies with whole replicas: ddp, local_sgd, diloco, gossip, parameter_server"},
      {"training", "verify_every", at(&Config::verify_every),
       "steps between two comparisons of all replicas' parameters; 0: never", 0, kMany},
      one_of({"heal", "rank_0", "stop"},
             {"training", "on_divergence", at(&Config::on_divergence),
              "if replicas differ: heal: copy the values of more than half of the ranks, or stop if there is no "
              "majority; rank_0: then copy rank 0's; stop: always stop"}),
      {"training", "seed", at(&Config::seed), "seed of all random numbers", 0, 9e18},
      {"training", "validate_every", at(&Config::validate_every), "epochs between two validations; 0: never", 0, kMany},
      {"training", "validate_only", at(&Config::validate_only),
       "load the model that resume or init_from names, evaluate the held-out data once, train and save nothing"},

      per_rank({"checkpoint", "checkpoint_dir", at(&Config::checkpoint_dir),
                "where checkpoints go; auto: `checkpoints` in run_dir"}),
      {"checkpoint", "save_every", at(&Config::save_every),
       "steps between two checkpoints; 0: only at the end; -1: never", -1, kMany},
      {"checkpoint", "keep_last", at(&Config::keep_last), "checkpoints to keep, `best` not counted", 1, 1e6},
      {"checkpoint", "snapshot_every", at(&Config::snapshot_every),
       "steps between two copies of a sharded rank's state in another rank's memory; the job goes on from them when a "
       "rank dies; 0: none",
       0, kMany},
      {"checkpoint", "staging_limit_mb", at(&Config::staging_limit_mb),
       "MiB for the copy of a rank's part while it is written; what does not fit is written before training goes on", 0,
       1e9},
      per_rank({"checkpoint", "after_save", at(&Config::after_save),
                "a command that rank 0 runs with /bin/sh for each checkpoint, once it is on disk: TROUPE_CHECKPOINT is "
                "its folder, TROUPE_STEP its step; empty: none"}),
      per_rank({"checkpoint", "after_save_timeout", at(&Config::after_save_timeout),
                "seconds after which that command is stopped", 0.1, 604'800}),
      per_rank({"checkpoint", "resume", at(&Config::resume),
                "`latest`: the newest checkpoint of this program's newest run that has one, or in the folder given; "
                "`best`: the best one, likewise; `auto`: as latest, or a new run if there is none; a run, RUN or "
                "RUN@STEP; a checkpoint's path"}),
      {"checkpoint", "init_from", at(&Config::init_from),
       "the model's first values: a .safetensors or torch.save file, or a checkpoint; not used if a run is resumed"},
      {"checkpoint", "init_rename", at(&Config::init_rename),
       "old=new,...: prefixes of names in that file, and what they are in the model"},
      {"checkpoint", "init_allow_missing", at(&Config::init_allow_missing),
       "load from that file the tensors that fit, and leave the others as they are"},

      formed("a strategy's name",
             {"strategy", "strategy", at(&Config::strategy), "how parameters are laid out over ranks"}),
      checked(
          check_switches, "empty, or STEP:STRATEGY[+HOOK],... with ddp, local_sgd, diloco",
          {"strategy", "switch_at", at(&Config::switch_at),
           "later strategies, each with its first step and optionally a communication hook: 200:ddp+bf16,400:diloco"}),
      {"strategy", "bucket_cap_mb", at(&Config::bucket_cap_mb),
       "MiB of gradients in a bucket; 0: 25 on a GPU, 5 on CPUs", 0, 1e6},
      {"strategy", "first_bucket_mb", at(&Config::first_bucket_mb), "MiB in the bucket that fills first", 1e-6, 1e6},
      {"strategy", "early_update", at(&Config::early_update),
       "ddp on CPUs: the optimizer's update is made as buckets are reduced, in a second copy of parameters and "
       "moments"},
      {"strategy", "broadcast_buffers", at(&Config::broadcast_buffers),
       "send rank 0's buffers to all ranks before each step"},
      {"strategy", "static_graph", at(&Config::static_graph),
       "promise: every step uses the same parameters in the same order"},
      {"strategy", "sync_batchnorm", at(&Config::sync_batchnorm), "BatchNorm statistics over all ranks"},
      formed("a communication hook's name",
             {"strategy", "comm_hook", at(&Config::comm_hook), "how gradients are packed before they are reduced"}),
      {"strategy", "powersgd_rank", at(&Config::powersgd_rank), "rank of PowerSGD's approximation", 1, 1024},
      {"strategy", "powersgd_start_step", at(&Config::powersgd_start_step),
       "first step that compresses; earlier ones send whole gradients", 0, kMany},
      {"strategy", "sync_every", at(&Config::sync_every), "local_sgd, diloco: steps between two outer steps", 1, kMany},
      {"strategy", "outer_lr", at(&Config::outer_lr), "diloco: rate of the outer optimizer", 0, 1e3},
      {"strategy", "outer_momentum", at(&Config::outer_momentum), "diloco: Nesterov momentum of the outer optimizer", 0,
       1},
      {"strategy", "diloco_fragments", at(&Config::diloco_fragments),
       "parts of the model that have their outer steps in turn", 1, 65536},
      {"strategy", "diloco_overlap", at(&Config::diloco_overlap), "steps that are made while a fragment is averaged", 0,
       kMany},
      {"strategy", "diloco_mixing", at(&Config::diloco_mixing),
       "with overlap: how much of a rank's own parameters stays", 0, 1},
      {"strategy", "staleness", at(&Config::staleness),
       "parameter_server: how many updates old a gradient may be; a step makes one update more than this", 0, 1024},
      {"strategy", "server_shares", at(&Config::server_shares),
       "parameter_server: shares per rank into which an update's samples are cut; a rank takes the next one when it is "
       "ready",
       1, 1024},
      formed("empty, or one or more of dp=N,fsdp=N,tp=N,pp=N",
             {"strategy", "mesh", at(&Config::mesh),
              "pipeline, tensor_parallel: how ranks are arranged; empty: all in one pipeline, or one group"}),
      formed("a schedule's name", {"strategy", "pipeline_schedule", at(&Config::pipeline_schedule),
                                   "order of a step's micro-batches (grad_accum_steps)"}),
      {"strategy", "pipeline_chunks", at(&Config::pipeline_chunks), "interleaved: stages on each rank", 1, 1024},
      formed("parameters, measured (a forward before the first step), or 1,1,2: a cost for each block",
             {"strategy", "pipeline_costs", at(&Config::pipeline_costs), "the costs by which stages are balanced"}),
      {"strategy", "tensor_plan", at(&Config::tensor_plan),
       "tp: layers that are split over ranks, as in layers.*.up: column, layers.*.down: row"},
      {"strategy", "sequence_parallel", at(&Config::sequence_parallel),
       "tp: between split layers each rank has a part of the tokens"},
      one_of({"full_shard", "shard_grad_op", "hybrid_shard", "no_shard"},
             {"strategy", "fsdp_mode", at(&Config::fsdp_mode), "what fsdp shards"}),
      formed("block, type:T, numel:N, name:PATH, or none",
             {"strategy", "fsdp_wrap", at(&Config::fsdp_wrap), "which modules are the units of fsdp"}),
      {"strategy", "fsdp_shard_size", at(&Config::fsdp_shard_size),
       "hybrid_shard: ranks that share one copy; 0: those of a host", 0, 65536},
      {"strategy", "fsdp_mapped", at(&Config::fsdp_mapped),
       "keep shards in memory that all ranks of a host can read, if possible"},
      {"strategy", "fsdp_cpu_offload", at(&Config::fsdp_cpu_offload),
       "on a GPU: keep shards, their gradients and the optimizer's state in the host's memory"},
      {"strategy", "deferred_init", at(&Config::deferred_init),
       "build the model without memory; a sharded strategy then fills one unit after another with the usual values"},
      {"strategy", "fsdp_prefetch", at(&Config::fsdp_prefetch), "units gathered ahead", 0, 1024},
      {"strategy", "fsdp_prefetch_mb", at(&Config::fsdp_prefetch_mb), "MiB that units gathered ahead may take", 1e-6,
       1e6},
      {"strategy", "fsdp_sync_micro_batches", at(&Config::fsdp_sync_micro_batches),
       "reduce gradients after each micro-batch"},
      one_of({"float32", "bfloat16", "float16"},
             {"strategy", "param_dtype", at(&Config::param_dtype), "of forward and backward in sharded strategies"}),
      one_of({"float32", "bfloat16", "float16"},
             {"strategy", "reduce_dtype", at(&Config::reduce_dtype), "of gradients while they are reduced"}),
      one_of({"float32", "bfloat16", "float16"},
             {"strategy", "buffer_dtype", at(&Config::buffer_dtype), "of floating-point buffers"}),

      {.section = "communication",
       .name = "backend",
       .member = at(&Config::backend),
       .help = "how ranks exchange tensors",
       .registered = known_communicators},
      formed("auto, cpu, cuda (each rank its local rank's), or cuda:N",
             {"communication", "device", at(&Config::device), "where ranks train"}),
      {"communication", "share_device", at(&Config::share_device),
       "several ranks may share a GPU; for tests: it is slow"},
      {"communication", "tf32", at(&Config::tf32),
       "on a GPU: f32 matrix products round their factors to TF32, with 10 bits of mantissa"},
      {"communication", "cudnn_benchmark", at(&Config::cudnn_benchmark),
       "cuDNN tries its algorithms on each new shape, and takes the fastest"},
      {"communication", "collective_timeout", at(&Config::collective_timeout),
       "seconds that a collective may wait for the others", 0.1, 86400},

      per_rank({"observe", "progress_bar", at(&Config::progress_bar), "on a terminal, a bar below the log lines"}),
      per_rank({"observe", "tensorboard", at(&Config::tensorboard), "event files in run_dir/tensorboard"}),
      per_rank({"observe", "metrics_port", at(&Config::metrics_port),
                "a page that follows the run, and Prometheus's /metrics, on this port of rank 0's loopback interface; "
                "0: none",
                0, 65535}),
      per_rank({"observe", "mlflow_uri", at(&Config::mlflow_uri),
                "MLflow's tracking server, for example http://127.0.0.1:5000; empty: none"}),
      per_rank({"observe", "mlflow_experiment", at(&Config::mlflow_experiment),
                "experiment of the run there; created if it does not exist"}),

      per_rank(
          {"run", "ranks", at(&Config::ranks), "ranks inside this process: a simulated cluster, for tests", 1, 64}),
      per_rank({"run", "chaos", at(&Config::chaos),
                "with `ranks`: injects faults into them, for example seed=7,mtbf=30s,kinds=kill+stop"}),
      per_rank({"run", "threads", at(&Config::threads),
                "LibTorch's threads per rank; 0: one if ranks share the machine", 0, 4096}),
      per_rank(one_of({"off", "node"}, {"run", "bind_cpus", at(&Config::bind_cpus),
                                        "node: the process runs on the CPUs near its GPU, of those that it may use"})),
      per_rank({"run", "log_interval", at(&Config::log_interval), "steps between two log lines", 1, kMany}),
      per_rank({"run", "run_dir", at(&Config::run_dir),
                "logs, metrics.jsonl, run.json, event files; auto: a new folder below runs/, which runs/latest links "
                "to; empty: none"}),
      may_stand_alone(checked(check_profile, "off, true, steps=FIRST:LAST, steps=FIRST:LAST,operators=off",
                              {"run", "profile", at(&Config::profile),
                               "true: print at the end where the time of rank 0's steps went; with steps=10:13 also a "
                               "trace of steps 10 to 12 of all ranks, run_dir/trace.json"})),
      per_rank(one_of({"auto", "on", "off"}, {"run", "nvtx", at(&Config::nvtx),
                                              "spans of a trace as NVTX ranges for Nsight Systems; auto: if it has "
                                              "injected itself (NVTX_INJECTION64_PATH is set)"})),
  };
  return fields;
}

std::vector<std::string> choices_of(const ConfigField& field) {
  if (field.registered == nullptr) return field.choices;
  std::vector<std::string> names;
  for (const auto& known : field.registered()) names.push_back(known.name);
  return names;
}

}  // namespace troupe
