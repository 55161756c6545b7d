#pragma once
// What a drawn job is, as plain data. This header, net.hpp and samples.hpp include nothing of Troupe: the reference
// reads them, too.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

namespace troupe::differential {

inline constexpr int kChangeStep = 3;  ///< in which a parameter is frozen, a gradient infinite
inline constexpr int kSaveEvery = 5;   ///< steps

/// One small training job. Each field is a dimension of dimensions.py, which says what values it takes; a default is
/// the simplest value, so that a job is written down by what differs from it.
struct Job {
  // The ranks.
  int ranks = 1;
  std::string strategy = "ddp";  ///< as `--strategy`; fsdp's modes are fsdp, shard_grad_op, hybrid_shard, no_shard
  std::string backend = "shm";
  std::string loop = "custom";  ///< custom, framework (troupe::train)
  std::string device = "cpu";   ///< cpu, fake (tests/support/fake_device.hpp, with threads in place of NCCL's ranks)

  // The model.
  std::string model = "mlp";      ///< mlp, conv, tokens
  int cells = 1;                  ///< blocks in a row
  std::string dtype = "float64";  ///< of parameters and inputs
  std::string norm = "none";      ///< in each cell: none, layer, batch
  double dropout = 0;             ///< in each cell
  std::string tie = "none";       ///< none, two_names, module_twice, output (tokens: the embedding scores the words)
  std::string odd = "none";       ///< one more parameter: none, scalar, empty, strided, bfloat16
  std::string frozen =
      "none";  ///< the first cell's weights: none, always, later (from kChangeStep), first
               ///< (until it, and so when it is distributed), toggled (from the first forward until it)
  std::string unused = "none";  ///< a branch: none, always, step, micro_batch, rank, data
  int padding_idx = -1;         ///< tokens: of the embedding; -1: none

  // The optimizer.
  std::string optimizer =
      "sgd";  ///< ours: sgd, adamw; torch::optim's: torch.SGD, torch.Adam, torch.AdamW, torch.RMSprop, torch.Adagrad
  std::string rule = "plain";  ///< plain, momentum, other: Nesterov, amsgrad, centered RMSprop, Adagrad with lr_decay
  std::string groups =
      "one";  ///< one, rates (the second half at half the rate), zero (at rate 0), decay (without weight decay)
  std::string listed =
      "once";  ///< a tied tensor is handed to torch::optim once, or twice as LibTorch's parameters() lists it
  double weight_decay = 0;
  std::string no_decay = "";  ///< as `--no_decay`, of ours in one group: "", norms, *.bias
  double clip_norm = 0;
  std::string schedule = "constant";  ///< constant, cosine, step, floor (cosine to lr_min, a fifth of the rate)
  int warmup_steps = 0;
  std::string loss = "mean";  ///< mean, masked (over the targets that count, of which batches have unequal numbers)
  double scale = 1;           ///< of the loss

  // The data.
  int samples = 48;
  int batch_size = 12;
  int accumulate = 1;  ///< grad_accum_steps
  bool drop_last = true;
  bool shuffle = false;
  std::string feed = "loader";    ///< loader, named (the loader's samples have no input, and labels of unequal lengths,
                                  ///< which are padded), uneven (rank.uneven)
  std::string balance = "equal";  ///< equal, weights (1, 2, .. by rank)
  int max_steps = 0;
  int bad_sample = -1;  ///< that can't be read, in both sets: the next one is trained on, and validation leaves it out

  // How it runs.
  double bucket_mb = 25;
  std::string comm_hook = "none";  ///< none, fp16, bf16, powersgd, owing
  int powersgd_rank = 1;
  bool broadcast_buffers = true;
  bool sync_batchnorm = false;
  bool static_graph = false;
  bool early_update = false;
  std::string checkpointing = "none";
  bool graphs = false;        ///< cuda_graphs, on a device
  std::string vote = "step";  ///< step, late: on a device
  std::string amp = "none";   ///< none, bf16, fp16
  std::string loss_scaler = "auto";
  int loss_scale_interval = 2000;
  std::string on_not_finite = "skip";  ///< skip, stop; skip:1: max_skipped_steps is 1
  std::string shards = "plain";  ///< of strategies that cut parameters: plain, each (each micro-batch is reduced),
                                 ///< one_by_one (no unit is gathered ahead), offload (on a device)
  std::string units = "block";   ///< of fsdp, as `--fsdp_wrap`
  int server_shares = 1;         ///< parameter_server
  int workers = 1;               ///< num_workers
  std::string stages = "1f1b";   ///< of a pipeline, as `--pipeline_schedule`
  int sync_every = 2;            ///< local_sgd, diloco
  double outer_momentum = 0.9;   ///< diloco
  int fragments = 1;             ///< diloco
  int overlap = 0;               ///< diloco, steps
  std::string switch_at = "";    ///< as `--switch_at`, one switch
  int staleness = 0;             ///< parameter_server, on one rank: a step is one update more than this
  int verify_every = 0;
  int snapshot_every = 10;
  bool desk = false;     ///< the program logs metrics and has a state, which must say what the records say
  bool renewed = false;  ///< a torch::optim optimizer is made anew in kChangeStep, in the same place
  bool touched = false;  ///< on_update: the program itself scales the parameters
  int validate = 0;      ///< held-out samples; 0: none

  // What happens.
  std::string event = "none";  ///< none, resume, infinite (a gradient of kChangeStep), kill (a rank, which is
                               ///< replaced), lose (it is not), all (all ranks are killed, and the job begins again
                               ///< from its last checkpoint), net (a rank's connections break), disk (its next
                               ///< checkpoint finds that full), stop (it stands still for a moment), hang (for so
                               ///< long that it is replaced), slow (for a while it is), leave (it leaves on notice,
                               ///< after the step)
  std::string stop_at = "forward";   ///< where the run that is resumed is stopped: forward (of its last step), validate
                                     ///< (in the validation after that step)
  int resume_ranks = 0;              ///< 0: as many as before
  int resume_batch = 0;              ///< 0: as before
  std::string resume_strategy = "";  ///< empty: as before
  std::string kill_at = "backward";  ///< where a rank is hurt: a place of fault_point
  int hurt_step = kChangeStep;       ///< ... and in which step; at "save" it is that of the first checkpoint, at
                                     ///< "validate" and "validated" the last one, at "distribute" the first
  std::string hurt_rank = "last";    ///< ... and which: last, first
  std::string again = "none";        ///< other: one step later another rank is hurt, too; newcomer: the one that
                                     ///< replaces it dies while it gets the model
  int seed = 42;
  bool exact = false;       ///< not drawn: the reference computes in f64, whatever dtype says
  bool dies_early = false;  ///< not drawn: the others learn of the death while they meet in the outer step before it
};

// In two halves: one call of the library's macro takes 63 names.
#define TROUPE_JOB_FIRST(WHAT)                                                                                       \
  NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(                                                                          \
      WHAT, ranks, strategy, backend, loop, device, model, cells, dtype, norm, dropout, tie, odd, frozen, unused,    \
      padding_idx, optimizer, rule, groups, listed, weight_decay, no_decay, clip_norm, schedule, warmup_steps, loss, \
      scale, samples, batch_size, accumulate, drop_last, shuffle, feed, balance, max_steps, bad_sample, bucket_mb))
#define TROUPE_JOB_SECOND(WHAT)                                                                                     \
  NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(                                                                         \
      WHAT, comm_hook, powersgd_rank, broadcast_buffers, sync_batchnorm, static_graph, early_update, checkpointing, \
      graphs, vote, amp, loss_scaler, loss_scale_interval, on_not_finite, shards, units, server_shares, workers,    \
      stages, sync_every, outer_momentum, fragments, overlap, switch_at, staleness, verify_every, snapshot_every,   \
      desk, renewed, touched, validate, event, stop_at, resume_ranks, resume_batch, resume_strategy, kill_at,       \
      hurt_step, hurt_rank, again, seed))

inline void to_json(nlohmann::json& nlohmann_json_j, const Job& nlohmann_json_t) {
  TROUPE_JOB_FIRST(NLOHMANN_JSON_TO)
  TROUPE_JOB_SECOND(NLOHMANN_JSON_TO)
}
inline void from_json(const nlohmann::json& nlohmann_json_j, Job& nlohmann_json_t) {
  const Job nlohmann_json_default_obj;
  TROUPE_JOB_FIRST(NLOHMANN_JSON_FROM_WITH_DEFAULT)
  TROUPE_JOB_SECOND(NLOHMANN_JSON_FROM_WITH_DEFAULT)
}
#undef TROUPE_JOB_FIRST
#undef TROUPE_JOB_SECOND

inline constexpr double kEps = 1e-3;    ///< of the optimizers: a gradient that is nothing but rounding must not count
inline constexpr double kMixing = 0.5;  ///< of diloco's overlapped fragments
inline constexpr int kResumeStep = 4;   ///< after which a run ends that is resumed
inline constexpr int kSteps = 8;        ///< that a job takes at least, unless max_steps is less
inline constexpr int kHeldOut = 5000;   ///< the number of the first held-out sample
inline constexpr int kClasses = 3;
inline constexpr int kWords = 12;  ///< tokens' vocabulary
inline constexpr int kLength = 4;  ///< tokens of a sample
inline constexpr int kWidth = 12;  ///< of cells

inline bool kills(const Job& job) { return job.event == "kill" || job.event == "lose"; }
/// Something happens to a rank.
inline bool hurts(const Job& job) {
  static const std::set<std::string> events{"kill", "lose", "all", "net", "disk", "stop", "hang", "slow", "leave"};
  return events.contains(job.event);
}
inline bool shrinks(const Job& job) { return job.event == "lose" || job.event == "leave"; }
inline int hurt_rank_of(const Job& job) { return job.hurt_rank == "first" ? 0 : job.ranks - 1; }

/// The ranks of such a strategy have models that differ.
inline bool trains_apart(const std::string& strategy) {
  return strategy == "local_sgd" || strategy == "diloco" || strategy == "gossip";
}

/// Of the optimizer's first group: small if rounding would grow from step to step otherwise.
inline double rate_of(const Job& job) {
  return job.dtype == "float64" && job.optimizer != "torch.RMSprop" ? 0.05 : 0.005;
}

inline std::int64_t steps_per_epoch_of(const Job& job) {
  const std::int64_t n = job.samples, b = job.batch_size;
  return job.drop_last ? n / b : (n + b - 1) / b;
}
/// Passes over the data: enough for kSteps.
inline std::int64_t epochs_of(const Job& job) {
  const auto per_epoch = steps_per_epoch_of(job);
  return per_epoch == 0 ? 1 : (kSteps + per_epoch - 1) / per_epoch;
}
inline std::int64_t steps_of(const Job& job) {
  const auto steps = job.feed == "uneven" ? kSteps : epochs_of(job) * steps_per_epoch_of(job);
  return job.max_steps > 0 ? std::min<std::int64_t>(job.max_steps, steps) : steps;
}
inline std::int64_t hurt_step_of(const Job& job) {
  if (job.kill_at == "distribute") return 0;
  if (job.kill_at == "validate" || job.kill_at == "validated" || job.kill_at == "end") return steps_of(job);
  return job.kill_at == "save" ? kSaveEvery : job.hurt_step;
}

}  // namespace troupe::differential
