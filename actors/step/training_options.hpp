#pragma once
#include <cstdint>
#include <string>

#include "tensor_io/optimizer/loss_scaler.hpp"

namespace troupe {

/// The training loop: its length, its checks, its saves.
struct TrainingOptions : LossScalerOptions {
  std::int64_t epochs = 10;
  std::int64_t max_steps = 0;         ///< stop after this many optimizer steps; 0: no limit
  std::int64_t grad_accum_steps = 1;  ///< micro-batches of one optimizer step
  std::string balance = "equal";      ///< how a step's samples are shared out: equal, speed, or weights by rank (2,1)
  bool use_amp = false;               ///< autocast around forward and loss
  std::string amp_dtype = "bf16";     ///< bf16, fp16: of autocast
  std::string activation_checkpointing = "none";  ///< the blocks that compute their forward again in backward
  double clip_norm = 0;                           ///< clip the gradient's global norm; 0: don't
  std::string on_not_finite = "stop";             ///< stop, skip: a step whose loss or gradient is NaN or infinite
  std::int64_t max_skipped_steps = 10;            ///< skipped in a row, they end the job; 0: no limit
  std::string vote = "step";        ///< step, late: on a device, whether the host waits for each step's result
  bool cuda_graphs = false;         ///< on a device, forward and backward are a graph of it once their shapes repeat
  std::int64_t verify_every = 100;  ///< steps between two comparisons of all replicas' parameters; 0: never
  std::string on_divergence =
      "heal";  ///< replicas that differ: heal (from more than half, else stop), rank_0 (else rank 0 is right), stop
  std::uint64_t seed = 42;
  std::int64_t log_interval = 10;        ///< steps between two log lines
  std::int64_t validate_every = 1;       ///< epochs between two validations; 0: never
  bool validate_only = false;            ///< load a model, evaluate the held-out data once, train and save nothing
  std::string checkpoint_dir = "auto";   ///< auto: `checkpoints` in run_dir
  std::int64_t save_every = 0;           ///< steps between two checkpoints; 0: only at the end; -1: never
  std::int64_t keep_last = 3;            ///< checkpoints to keep, `best` not counted
  std::int64_t snapshot_every = 10;      ///< steps between two copies of sharded state that outlive a rank; 0: none
  std::int64_t staging_limit_mb = 8192;  ///< memory for the copy of a rank's part while it is written
  std::string resume;                    ///< "", "latest", "auto", a run (RUN or RUN@STEP), or the path of a checkpoint
  std::string init_from;    ///< the source of the model's first values, unless a run is resumed; "": the program
  std::string init_rename;  ///< `old=new,...`: prefixes of names in that file
  bool init_allow_missing = false;  ///< take the tensors that fit
  std::string run_dir = "auto";     ///< logs, metrics.jsonl, run.json; auto: a new folder below runs/
  std::string profile =
      "off";  ///< off, true (a table at the end), steps=10:13 (and a trace): launch/config/profile_setting.hpp
};

}  // namespace troupe
