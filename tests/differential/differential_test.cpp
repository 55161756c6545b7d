// Jobs that were at fault once, by kind. `./dev differential` finds more; a job is written down by what differs from
// the simplest one (job.hpp).
#include "tests/catch.hpp"
#include "tests/differential/compare.hpp"

using namespace troupe::differential;

namespace {

/// What is wrong with the job; empty: nothing.
std::string verdict_of(const std::string& job) { return verdict(nlohmann::json::parse(job).get<Job>()); }

void right(const std::vector<std::string>& jobs) {
  for (const auto& job : jobs) {
    INFO(job);
    CHECK(verdict_of(job) == "");
  }
}

void refused(const std::string& job, const std::string& says) {
  INFO(job);
  CHECK_THAT(verdict_of(job), Catch::StartsWith("ended: ") && Catch::Contains(says));
}

}  // namespace

TEST_CASE("[T01] the simplest job is one rank's loop, and so are its like on more ranks") {
  right({"{}", R"({"ranks": 2})", R"({"ranks": 3, "strategy": "fsdp", "model": "conv", "norm": "batch"})",
         R"({"ranks": 2, "strategy": "diloco", "model": "tokens", "cells": 2})",
         R"({"ranks": 2, "dropout": 0.25, "model": "tokens", "accumulate": 2})"});
}

TEST_CASE("[T01] a tensor of two names is one tensor: in optimizer state, in every strategy, after a resume") {
  right(
      {R"({"ranks": 2, "strategy": "fsdp", "tie": "two_names", "optimizer": "torch.AdamW"})",
       R"({"ranks": 2, "strategy": "fsdp", "tie": "two_names", "optimizer": "torch.SGD", "rule": "momentum", "event": "resume"})",
       R"({"ranks": 2, "tie": "two_names", "optimizer": "torch.AdamW", "listed": "twice"})",
       R"({"ranks": 2, "tie": "two_names", "optimizer": "torch.SGD", "listed": "twice", "strategy": "local_sgd"})",
       R"({"ranks": 2, "tie": "module_twice", "dropout": 0.25, "cells": 2})"});
}

TEST_CASE("[T01] a torch::optim optimizer keeps its own rates, and a schedule multiplies them") {
  right({R"({"optimizer": "torch.SGD"})", R"({"optimizer": "torch.Adam", "groups": "zero", "schedule": "cosine"})",
         R"({"optimizer": "torch.Adagrad", "groups": "rates", "warmup_steps": 3, "loop": "framework", "ranks": 2})"});
}

TEST_CASE(
    "[T01] steps are counted by steps, also after a resume with another batch size and in a loop without a loader") {
  right({R"({"event": "resume", "batch_size": 24, "resume_batch": 12, "max_steps": 6})",
         R"({"event": "resume", "resume_batch": 24, "max_steps": 6, "schedule": "cosine"})",
         R"({"feed": "uneven", "ranks": 2, "schedule": "cosine", "max_steps": 6})",
         R"({"ranks": 2, "schedule": "floor", "groups": "rates", "warmup_steps": 3, "event": "resume"})"});
  refused(R"({"schedule": "floor", "optimizer": "torch.SGD"})", "lr_min: ");
  refused(R"({"feed": "uneven", "ranks": 2, "schedule": "cosine"})", "schedule: cosine goes by the run's length");
  refused(R"({"feed": "uneven", "ranks": 2, "schedule": "step"})", "schedule: step goes by epochs");
}

TEST_CASE(
    "[T01] a parameter may be frozen and trained again, or is refused by name where it was frozen from the start") {
  right({R"({"ranks": 2, "frozen": "later"})", R"({"ranks": 2, "frozen": "toggled"})",
         R"({"ranks": 2, "frozen": "toggled", "strategy": "fsdp"})", R"({"ranks": 2, "frozen": "always"})"});
  right({R"({"ranks": 2, "frozen": "later", "event": "kill", "kill_at": "voted"})",
         R"({"ranks": 2, "frozen": "later", "event": "kill", "strategy": "fsdp", "snapshot_every": 2})",
         R"({"ranks": 3, "frozen": "toggled", "event": "kill", "strategy": "zero1"})"});
  refused(R"({"ranks": 2, "frozen": "first"})", "parameter cell0.linear.weight is trained now, and was frozen");
}

TEST_CASE("[T01] a gradient that a communication hook makes infinite skips the step") {
  right({R"({"ranks": 2, "comm_hook": "fp16", "scale": 1e6})",
         R"({"ranks": 2, "comm_hook": "fp16", "dtype": "float32"})",
         R"({"ranks": 3, "comm_hook": "fp16", "dtype": "float32", "loss_scaler": "on", "loss_scale_interval": 2})"});
  refused(R"({"ranks": 2, "strategy": "local_sgd", "comm_hook": "fp16", "scale": 1e9})",
          "the ranks' mean change overflows comm_hook's type");
}

TEST_CASE("[T01] what a program does between steps is called in both loops, and both run under autocast") {
  right({R"({"loop": "framework", "ranks": 2})", R"({"ranks": 2})", R"({"loop": "framework", "amp": "bf16"})",
         R"({"amp": "bf16"})"});
}

TEST_CASE("[T01] a loss scale grows and falls as PyTorch's, and a step that overflows f16 is skipped") {
  right(
      {R"({"amp": "fp16", "dtype": "float32", "loss_scale_interval": 2})",
       R"({"ranks": 3, "amp": "fp16", "dtype": "float32", "loss_scale_interval": 2, "strategy": "fsdp", "model": "tokens"})",
       R"({"amp": "fp16", "dtype": "float32", "loss_scale_interval": 2, "model": "tokens", "tie": "module_twice"})",
       R"({"ranks": 2, "loss_scaler": "on", "loss_scale_interval": 2, "event": "infinite"})",
       R"({"ranks": 2, "amp": "fp16", "dtype": "float32", "loss_scale_interval": 2, "on_not_finite": "stop",
             "event": "resume"})",
       R"({"device": "fake", "model": "conv", "dtype": "float32", "norm": "layer", "tie": "module_twice",
             "frozen": "always", "samples": 1, "drop_last": false, "amp": "fp16"})"});
  refused(R"({"ranks": 2, "amp": "fp16", "event": "infinite", "on_not_finite": "stop"})", "the loss is not finite");
  for (const auto* scaler : {"auto", "on"})
    refused(R"({"ranks": 2, "event": "infinite", "on_not_finite": "skip:1", "loss_scaler": ")" + std::string(scaler) +
                "\"}",
            "1 step was skipped, the last because");
}

TEST_CASE("[T01] an option that a layer has holds when ranks share it") {
  right(
      {R"({"ranks": 2, "strategy": "tensor_parallel", "model": "tokens", "padding_idx": 0, "dtype": "float32"})",
       R"({"ranks": 3, "strategy": "tensor_parallel", "model": "tokens", "padding_idx": 0, "tie": "output", "dtype": "float32"})"});
}

TEST_CASE("[T01] a parameter without dimensions keeps its moments from one strategy to another") {
  right(
      {R"({"odd": "scalar", "optimizer": "adamw", "event": "resume", "resume_strategy": "fsdp"})",
       R"({"odd": "scalar", "optimizer": "adamw", "event": "resume", "strategy": "zero1", "resume_strategy": "ddp", "ranks": 2})",
       R"({"odd": "scalar", "optimizer": "torch.Adagrad", "event": "resume", "resume_strategy": "zero1", "ranks": 2})"});
}

TEST_CASE("[T01] a loss over elements is their mean, however many each rank and micro-batch has") {
  right(
      {R"({"loss": "masked", "ranks": 3, "model": "tokens"})",
       R"({"loss": "masked", "ranks": 2, "accumulate": 2, "clip_norm": 0.3, "loop": "framework", "validate": 7})",
       R"({"loss": "masked", "ranks": 4, "strategy": "fsdp", "samples": 50, "drop_last": false, "accumulate": 2, "batch_size": 24})",
       R"({"loss": "masked", "ranks": 2, "strategy": "zero2", "loss_scaler": "on", "clip_norm": 0.3})",
       R"({"loss": "masked", "ranks": 2, "strategy": "local_sgd", "clip_norm": 0.3})",
       R"({"loss": "masked", "ranks": 2, "strategy": "pipeline", "cells": 2, "accumulate": 2, "dtype": "float32", "clip_norm": 0.3})",
       R"({"loss": "masked", "ranks": 2, "strategy": "tensor_parallel", "dtype": "float32"})",
       R"({"loss": "masked", "ranks": 2, "feed": "uneven", "model": "tokens"})",
       R"({"loss": "masked", "ranks": 2, "event": "kill"})",
       R"({"loss": "masked", "samples": 1, "drop_last": false, "ranks": 2})"});  // of which nothing counts
  refused(R"({"loss": "masked", "ranks": 2, "early_update": true, "dtype": "float32"})", "early_update updates");
  refused(R"({"loss": "masked", "ranks": 2, "strategy": "parameter_server"})", "the loss is a sum");
}

TEST_CASE("[T01] a program's own metrics of a batch in which nothing counts are left out, whose loss is no number") {
  right(
      {R"({"ranks": 3, "loss": "masked", "samples": 29, "drop_last": false, "validate": 7, "desk": true, "event": "infinite"})"});
}

TEST_CASE("[T01] what a program itself does to parameters holds on all ranks, newcomers too, or is refused") {
  right(
      {R"({"ranks": 2, "touched": true, "odd": "scalar", "event": "kill", "kill_at": "voted", "hurt_step": 0})",
       R"({"ranks": 2, "touched": true, "strategy": "diloco", "sync_every": 3, "overlap": 1, "event": "kill", "hurt_step": 6})",
       R"({"touched": true, "strategy": "diloco", "cells": 2, "frozen": "always", "sync_every": 3, "fragments": 2})",
       R"({"ranks": 2, "touched": true, "loss_scaler": "on", "event": "infinite"})",
       R"({"ranks": 2, "touched": true, "strategy": "tensor_parallel", "dtype": "float32", "event": "kill"})"});
  for (const char* strategy : {"fsdp", "zero1", "zero2"}) {
    refused(R"({"ranks": 2, "touched": true, "strategy": ")" + std::string(strategy) + R"("})",
            "the program itself has changed ");
  }
}

TEST_CASE("[T01] batches of unequal numbers come again after the loss of a rank, and a resumed run goes on with them") {
  right(
      {R"({"feed": "uneven", "ranks": 2, "event": "kill"})",
       R"({"feed": "uneven", "ranks": 3, "event": "kill", "kill_at": "voted"})",
       R"({"feed": "uneven", "ranks": 2, "event": "kill", "kill_at": "forward", "strategy": "fsdp", "snapshot_every": 2})",
       R"({"feed": "uneven", "ranks": 2, "event": "resume"})"});
}

TEST_CASE("[T01] SyncBatchNorm sums no gradient of a repeated sample, which may be infinite") {
  right({R"({"ranks": 4, "model": "tokens", "norm": "batch", "samples": 29, "batch_size": 24, "accumulate": 2,
             "drop_last": false, "sync_batchnorm": true, "event": "infinite"})"});
}

TEST_CASE("[T01] a mesh drops what a sample of weight 0 brings, also where that is infinite") {
  right(
      {R"({"ranks": 4, "strategy": "tensor_parallel/dp=2,tp=2", "samples": 13, "drop_last": false, "event": "infinite", "dtype": "float32"})",
       R"({"ranks": 4, "strategy": "pipeline/dp=2,pp=2", "cells": 3, "samples": 13, "drop_last": false, "event": "infinite", "dtype": "float32"})",
       R"({"ranks": 4, "strategy": "pipeline/fsdp=2,tp=2", "cells": 3, "samples": 13, "drop_last": false, "event": "infinite", "dtype": "float32"})",
       R"({"ranks": 4, "strategy": "tensor_parallel/dp=2,tp=2", "samples": 13, "drop_last": false, "unused": "rank", "rule": "momentum", "dtype": "float32"})"});
}

TEST_CASE("[T01] a rank that has run out of data takes no step of its own, and uses no parameter") {
  right(
      {R"({"feed": "uneven", "ranks": 2, "strategy": "local_sgd", "weight_decay": 0.1})",
       R"({"feed": "uneven", "ranks": 2, "unused": "rank", "weight_decay": 0.1})",
       R"({"samples": 13, "drop_last": false, "ranks": 2, "strategy": "fsdp", "unused": "rank", "weight_decay": 0.1})"});
}

TEST_CASE("[T01] a parameter without elements may be saved by one strategy and resumed by another") {
  right(
      {R"({"odd": "empty", "rule": "momentum", "event": "resume", "strategy": "fsdp", "resume_strategy": "ddp"})",
       R"({"odd": "empty", "optimizer": "torch.Adagrad", "event": "resume", "strategy": "zero1", "resume_strategy": "ddp"})",
       R"({"odd": "empty", "optimizer": "adamw", "event": "resume", "strategy": "ddp", "resume_strategy": "fsdp", "ranks": 2})"});
}

TEST_CASE("[T01] buffers that each rank has its own of are rank 0's in a checkpoint") {
  right({R"({"ranks": 2, "norm": "batch", "broadcast_buffers": false})",
         R"({"ranks": 3, "norm": "batch", "broadcast_buffers": false, "strategy": "fsdp", "event": "resume"})"});
}

TEST_CASE("[T01] a sample that can't be read counts once: its neighbour's in training, and not at all in validation") {
  right({R"({"bad_sample": 4, "loop": "framework", "validate": 7})",
         R"({"bad_sample": 4, "loop": "framework", "validate": 7, "ranks": 3, "loss": "masked", "shuffle": true})"});
}

TEST_CASE("[T01] each sample of an epoch's last batch weighs as much as one of a whole batch") {
  right(
      {R"({"samples": 50, "drop_last": false})", R"({"samples": 50, "drop_last": false, "ranks": 3, "accumulate": 2})",
       R"({"samples": 50, "drop_last": false, "ranks": 4, "strategy": "fsdp", "clip_norm": 0.3})",
       R"({"samples": 13, "drop_last": false, "ranks": 2, "strategy": "local_sgd"})",
       R"({"samples": 1, "drop_last": false, "ranks": 3, "loop": "framework"})",
       R"({"samples": 50, "drop_last": false, "ranks": 2, "strategy": "pipeline", "cells": 2, "accumulate": 2, "dtype": "float32"})",
       R"({"samples": 50, "drop_last": false, "ranks": 2, "strategy": "parameter_server"})"});
}

TEST_CASE("[T01] broken connections and a full disk change no number where every rank lives, a single one included") {
  right({R"({"strategy": "fsdp", "event": "net"})", R"({"strategy": "zero1", "event": "net", "kill_at": "optimizer"})",
         R"({"ranks": 2, "strategy": "shard_grad_op", "event": "net", "snapshot_every": 2})",
         R"({"ranks": 2, "strategy": "pipeline", "cells": 2, "dtype": "float32", "event": "net", "kill_at": "voted"})",
         R"({"ranks": 2, "dtype": "float32", "comm_hook": "powersgd", "event": "net", "kill_at": "reduced"})",
         R"({"ranks": 2, "loop": "framework", "event": "disk"})"});
}

TEST_CASE(
    "[T01] what a communication hook owes is saved and comes back: an interface that promises a state is called") {
  right({R"({"dtype": "float32", "clip_norm": 0.3, "comm_hook": "powersgd", "event": "resume"})",
         R"({"ranks": 2, "dtype": "float32", "comm_hook": "powersgd", "powersgd_rank": 2, "event": "resume"})",
         R"({"ranks": 2, "dtype": "float32", "comm_hook": "powersgd", "event": "infinite"})"});
}

TEST_CASE("[T01] what a hook owes waits for a step that is applied, and for one that uses the parameter") {
  right({R"({"ranks": 2, "dtype": "float32", "comm_hook": "powersgd", "unused": "step"})",
         R"({"ranks": 2, "dtype": "float32", "comm_hook": "powersgd", "loss": "masked", "unused": "rank"})",
         R"({"ranks": 2, "dtype": "float32", "comm_hook": "powersgd", "frozen": "toggled", "clip_norm": 0.3})"});
}

TEST_CASE("[T01] fragments meet in turn, and a switch of strategy takes what is under way") {
  right({R"({"ranks": 2, "strategy": "diloco", "fragments": 2, "sync_every": 3, "overlap": 1, "cells": 2})",
         R"({"ranks": 2, "strategy": "diloco", "fragments": 2, "frozen": "always"})",
         R"({"ranks": 2, "strategy": "diloco", "overlap": 1, "switch_at": "3:ddp", "rule": "momentum"})",
         R"({"ranks": 3, "switch_at": "4:diloco", "optimizer": "torch.Adam"})",
         R"({"ranks": 2, "strategy": "local_sgd", "switch_at": "3:ddp", "optimizer": "adamw"})"});
}

TEST_CASE("[T01] a rank that is lost in SyncBatchNorm is not taken for samples that are missing") {
  right(
      {R"({"ranks": 2, "model": "tokens", "norm": "batch", "sync_batchnorm": true, "samples": 13, "drop_last": false, "checkpointing": "block", "event": "kill", "kill_at": "forward"})"});
}

TEST_CASE("[T01] an update that overflows leaves the other updates of its step a model that is finite") {
  right(
      {R"({"strategy": "parameter_server", "staleness": 2, "optimizer": "adamw", "clip_norm": 0.3, "event": "infinite"})",
       R"({"strategy": "parameter_server", "staleness": 1, "model": "tokens", "tie": "module_twice", "amp": "fp16", "loss_scale_interval": 2, "dtype": "float32", "on_not_finite": "stop"})"});
}

TEST_CASE(
    "[T01] [T02] a torch::optim optimizer that is made anew where it lay is right, and after a resume and a death") {
  right({R"({"ranks": 2, "strategy": "pipeline", "cells": 2, "dtype": "float32", "odd": "empty", )"
         R"("optimizer": "torch.SGD", "rule": "momentum", "renewed": true, "event": "resume"})",
         R"({"ranks": 3, "strategy": "zero1", "optimizer": "torch.Adagrad", )"
         R"("renewed": true, "event": "kill", "hurt_step": 6})",
         R"({"ranks": 2, "strategy": "fsdp", "optimizer": "torch.Adam", )"
         R"("renewed": true, "snapshot_every": 2, "event": "kill"})",
         R"({"ranks": 2, "strategy": "diloco", "optimizer": "torch.RMSprop", "renewed": true, "event": "resume"})"});
}

TEST_CASE(
    "[T01] [L03] graphs of forward and backward are right with each strategy that takes them, and after a death") {
  right(
      {R"({"device": "fake", "graphs": true, "strategy": "parameter_server", "staleness": 1, "loop": "framework"})",
       R"({"ranks": 2, "device": "fake", "graphs": true, "strategy": "gossip"})",
       R"({"ranks": 2, "device": "fake", "graphs": true, "clip_norm": 0.3, "accumulate": 2, "event": "kill", "hurt_step": 6})",
       R"({"ranks": 2, "device": "fake", "graphs": true, "vote": "late", "optimizer": "adamw", "dropout": 0.25})"});
  refused(R"({"device": "fake", "graphs": true, "strategy": "zero1"})", "cuda_graphs: ");
  refused(R"({"device": "fake", "graphs": true, "desk": true})", "log: a metric can't be logged with cuda_graphs");
  refused(R"({"device": "fake", "vote": "late", "strategy": "parameter_server"})", "vote: ");
}

TEST_CASE("[T01] [F01] shards in the host's memory, reduced after each micro-batch, or gathered one by one are right") {
  right(
      {R"({"ranks": 2, "strategy": "fsdp/gathered", "device": "fake", "shards": "offload", "event": "kill"})",
       R"({"ranks": 3, "strategy": "fsdp", "device": "fake", "shards": "each", "accumulate": 2, "optimizer": "adamw"})",
       R"({"ranks": 2, "strategy": "fsdp/gathered", "shards": "one_by_one", "event": "resume", "resume_ranks": 1})"});
  refused(R"({"ranks": 4, "strategy": "pipeline/fsdp=2,tp=2", "device": "fake", "shards": "offload"})",
          "fsdp_cpu_offload: ");
}

TEST_CASE("[T01] [X02] pipelines are right with each schedule, and after a death") {
  right({R"({"ranks": 3, "strategy": "pipeline", "stages": "gpipe", "accumulate": 2, "dtype": "float32", "cells": 3})",
         R"({"ranks": 4, "strategy": "pipeline/dp=2,pp=2", "stages": "zero_bubble", "accumulate": 2, "dtype": "float32",
           "cells": 3, "event": "kill"})"});
}

TEST_CASE("[T01] unequal shares of a batch have the loss and gradient of equal ones") {
  right({R"({"ranks": 3, "balance": "weights"})",
         R"({"ranks": 2, "balance": "weights", "strategy": "zero1", "loss": "masked", "accumulate": 2})"});
  refused(R"({"ranks": 2, "balance": "weights", "strategy": "parameter_server"})", "balance: ");
}

TEST_CASE("[T01] a user's hook with a state is saved, goes back with a step, and is of the ranks that are left") {
  right({R"({"comm_hook": "owing", "event": "resume"})",
         R"({"ranks": 3, "comm_hook": "owing", "event": "resume", "clip_norm": 0.3})",
         R"({"ranks": 3, "comm_hook": "owing", "event": "resume", "resume_ranks": 2})",
         R"({"ranks": 2, "comm_hook": "owing", "event": "infinite", "loss": "masked"})",
         R"({"ranks": 2, "comm_hook": "owing", "event": "kill", "kill_at": "collective"})",
         R"({"ranks": 3, "comm_hook": "owing", "event": "kill", "kill_at": "voted"})"});
}

TEST_CASE("[T01] an outer step that was interrupted is taken after the recovery, the run's last one, too") {
  right({R"({"ranks": 3, "strategy": "local_sgd", "event": "kill", "kill_at": "collective", "max_steps": 4})",
         R"({"ranks": 3, "strategy": "diloco", "fragments": 2, "event": "kill", "kill_at": "collective"})",
         R"({"ranks": 2, "strategy": "diloco", "sync_every": 3, "overlap": 1, "event": "kill"})",
         R"({"strategy": "local_sgd", "comm_hook": "owing", "sync_every": 3, "max_steps": 6, "event": "net"})"});
}

TEST_CASE("[T01] of an outer step that is under way or interrupted a user's hook owes nothing") {
  right({R"({"strategy": "local_sgd", "comm_hook": "owing"})",
         R"({"strategy": "diloco", "comm_hook": "owing", "overlap": 1, "event": "resume"})",
         R"({"ranks": 3, "strategy": "local_sgd", "comm_hook": "owing", "event": "kill", "kill_at": "collective"})"});
}

TEST_CASE("[T01] a validation that is interrupted does not leave the model in eval mode") {
  right({R"({"strategy": "fsdp/gathered", "loop": "framework", "norm": "batch", "validate": 7, "event": "net"})",
         R"({"ranks": 2, "loop": "framework", "norm": "batch", "validate": 7, "event": "net", "strategy": "fsdp"})"});
}

TEST_CASE("[T01] a batch that counts nothing leaves the buffers as they were") {
  right(
      {R"({"ranks": 2, "model": "tokens", "norm": "batch", "samples": 13, "drop_last": false})",
       R"({"ranks": 2, "model": "tokens", "norm": "batch", "samples": 13, "drop_last": false, "accumulate": 2})",
       R"({"ranks": 3, "model": "tokens", "norm": "batch", "samples": 1, "drop_last": false, "strategy": "local_sgd"})",
       R"({"ranks": 2, "model": "tokens", "norm": "batch", "samples": 13, "drop_last": false, "accumulate": 2,
             "sync_batchnorm": true})"});
}

TEST_CASE("[T01] outer steps keep their turn over a resume, also in a run that had none before it") {
  right({R"({"event": "resume", "resume_strategy": "diloco"})",
         R"({"ranks": 2, "event": "resume", "strategy": "zero1", "resume_strategy": "local_sgd", "sync_every": 3})",
         R"({"ranks": 2, "event": "resume", "strategy": "local_sgd", "resume_strategy": "diloco", "fragments": 2})",
         R"({"ranks": 3, "event": "resume", "strategy": "diloco", "sync_every": 3, "overlap": 1, "fragments": 2})",
         R"({"ranks": 3, "event": "resume", "strategy": "diloco", "resume_strategy": "fsdp", "norm": "batch"})"});
}

TEST_CASE("[T01] where ranks train apart a lost one becomes a copy of the first, and no committed step is run twice") {
  right({R"({"ranks": 2, "strategy": "local_sgd", "event": "kill"})",
         R"({"ranks": 3, "strategy": "diloco", "event": "kill", "kill_at": "voted"})",
         R"({"ranks": 3, "strategy": "diloco", "event": "kill", "kill_at": "collective", "sync_every": 3})",
         R"({"ranks": 2, "strategy": "diloco", "event": "kill", "overlap": 1, "sync_every": 3})",
         R"({"ranks": 4, "strategy": "local_sgd", "event": "kill", "kill_at": "optimizer", "norm": "batch"})",
         R"({"ranks": 2, "strategy": "local_sgd", "event": "kill", "kill_at": "end", "sync_every": 3})",
         R"({"ranks": 3, "strategy": "local_sgd", "event": "lose", "kill_at": "data", "hurt_step": 6})"});
}

TEST_CASE("[T01] a user's strategy whose ranks meet behind the next step keeps what is frozen meanwhile") {
  right(
      {R"({"ranks": 2, "strategy": "gossip", "frozen": "later"})",
       R"({"ranks": 3, "strategy": "gossip", "model": "tokens", "loss": "masked", "samples": 13, "drop_last": false})",
       R"({"ranks": 2, "strategy": "gossip", "event": "resume", "resume_ranks": 1, "norm": "batch"})"});
  refused(R"({"ranks": 2, "strategy": "gossip", "comm_hook": "bf16", "dtype": "float32"})", "gossip has none");
}

TEST_CASE(
    "[L05] fault 40: a rank that is killed at any place of a step is replaced, and the job ends with the same bits") {
  const std::string strategy = GENERATE("ddp", "fsdp");
  for (const std::string place : {"data", "forward", "backward", "buckets", "collective", "reduced", "vote", "voted",
                                  "committed", "optimizer", "save", "end", "distribute"}) {
    const std::string rank = place[0] % 2 == 0 ? "first" : "last";  // now this one, now that
    right({R"({"ranks": 2, "cells": 2, "norm": "batch", "dropout": 0.25, "bucket_mb": 0.001, "loop": "framework",
               "validate": 7, "event": "kill", "strategy": ")" +
           strategy + R"(", "kill_at": ")" + place + R"(", "hurt_rank": ")" + rank + "\"}"});
  }
}

TEST_CASE("[L05] a rank that dies while another is replaced, or while it gets the model, changes no bit") {
  right({R"({"ranks": 2, "event": "kill", "kill_at": "forward", "again": "newcomer"})",
         R"({"ranks": 3, "event": "kill", "again": "newcomer", "hurt_rank": "first", "optimizer": "adamw"})",
         R"({"ranks": 3, "event": "kill", "again": "other", "strategy": "zero1"})",
         R"({"ranks": 2, "event": "net", "again": "other", "strategy": "fsdp", "hurt_step": 0})",
         // A save comes before the second newcomer's first step.
         R"({"ranks": 4, "strategy": "pipeline/dp=2,pp=2", "cells": 3, "dtype": "float32", "event": "kill",
             "kill_at": "voted", "again": "other"})"});
}

TEST_CASE("[L05] a step that is skipped when rank 0 dies is in the metrics, as others are") {
  right({R"({"ranks": 2, "loop": "framework", "dtype": "float32", "amp": "fp16", "scale": 1e6, "event": "kill",
             "kill_at": "optimizer", "hurt_step": 0, "hurt_rank": "first"})"});
}

TEST_CASE("[L05] a step that is committed stays so when rank 0 dies before it has sent the new order of buckets") {
  for (const std::string place : {"committed", "optimizer"})
    right({R"({"ranks": 2, "event": "kill", "hurt_step": 0, "hurt_rank": "first", "bucket_mb": 0.001, "kill_at": ")" +
           place + "\"}"});
}

TEST_CASE("[L05] what PowerSGD owes after a committed step is still owed when the connections break") {
  for (const std::string place : {"forward", "reduced", "vote", "voted", "committed", "optimizer"}) {
    for (const std::string step : {"0", "3"})
      right({R"({"ranks": 2, "dtype": "float32", "comm_hook": "powersgd", "event": "net", "hurt_rank": "first",
                 "hurt_step": )" +
             step + R"(, "kill_at": ")" + place + "\"}"});
  }
}

TEST_CASE("[L05] sharded ranks that lose one in their first step go back to buffers that no forward has moved") {
  right(
      {R"({"ranks": 2, "strategy": "fsdp", "norm": "batch", "event": "kill", "kill_at": "optimizer", "hurt_step": 0})"});
}

// Another try would train what the first has left of the parameters.
TEST_CASE("[L04] a rank that is lost while the others cut the model for the first time: all begin again") {
  for (const std::string strategy :
       {R"("ddp")", R"("zero1")", R"("fsdp", "odd": "strided")", R"("fsdp/gathered")",
        R"("fsdp/gathered", "device": "fake", "dtype": "float32")", R"("hybrid_shard")",
        R"("tensor_parallel/dp=2,tp=2", "dtype": "float32")", R"("pipeline/dp=2,pp=2", "dtype": "float32")"}) {
    for (const std::string event : {"kill", "net", "all"})
      right({R"({"ranks": 4, "cells": 2, "kill_at": "distribute", "event": ")" + event + R"(", "strategy": )" +
             strategy + "}"});
  }
}

TEST_CASE("[U04] each validation is right, also where a replica is lost after it or a signal cuts it off") {
  right(
      {R"({"ranks": 3, "strategy": "local_sgd", "samples": 13, "batch_size": 24, "drop_last": false, "max_steps": 6, "validate": 31, "event": "lose", "hurt_rank": "first"})",
       R"({"ranks": 2, "desk": true, "validate": 31, "event": "resume", "stop_at": "validate"})",
       R"({"ranks": 2, "strategy": "fsdp", "desk": true, "validate": 31, "event": "resume", "resume_ranks": 1})"});
}

TEST_CASE("[L05] fault 8: a rank that stands still too long is killed and replaced; a shorter stop changes nothing") {
  right({R"({"ranks": 2, "event": "hang"})", R"({"ranks": 2, "strategy": "fsdp", "event": "stop"})",
         R"({"ranks": 2, "event": "slow", "kill_at": "vote", "hurt_rank": "first"})"});
}

TEST_CASE("[L05] fault 6: ranks that all die begin again from their last checkpoint, or from nothing") {
  right({R"({"ranks": 2, "event": "all", "kill_at": "forward", "hurt_step": 6, "loop": "framework"})",
         R"({"ranks": 3, "event": "all", "hurt_step": 6, "strategy": "fsdp", "shuffle": true, "optimizer": "adamw"})",
         R"({"ranks": 2, "event": "all", "strategy": "zero1"})"});
}

TEST_CASE("[T01] a job goes on with fewer ranks and the same batches") {
  right({R"({"ranks": 2, "event": "lose"})", R"({"ranks": 3, "event": "lose", "strategy": "fsdp", "kill_at": "voted"})",
         R"({"ranks": 3, "event": "lose", "feed": "uneven"})",
         R"({"ranks": 4, "event": "lose", "strategy": "local_sgd"})",
         R"({"ranks": 3, "event": "lose", "strategy": "diloco", "kill_at": "committed", "accumulate": 2})"});
}

TEST_CASE("[L04] a rank that leaves on notice takes nothing along, and no step is run again") {
  right({R"({"ranks": 3, "event": "leave"})",
         R"({"ranks": 4, "event": "leave", "strategy": "fsdp", "backend": "gloo"})",
         R"({"ranks": 3, "event": "leave", "strategy": "zero1", "optimizer": "adamw", "hurt_rank": "first"})",
         R"({"ranks": 3, "event": "leave", "strategy": "diloco", "sync_every": 3, "overlap": 1})",
         R"({"ranks": 3, "event": "leave", "strategy": "local_sgd", "sync_every": 3, "norm": "batch"})"});
}

TEST_CASE("[T01] what a hook owes is in the same units with fewer ranks, also of sums") {
  right({R"({"ranks": 3, "event": "leave", "comm_hook": "owing", "loss": "masked"})",
         R"({"ranks": 3, "event": "leave", "comm_hook": "powersgd", "loss": "masked"})"});
}

TEST_CASE("[T01] a run goes on with the strategy that it has switched to, and with the mean of the buffers") {
  right(
      {R"({"ranks": 2, "switch_at": "3:local_sgd", "event": "resume", "resume_ranks": 1})",
       R"({"ranks": 2, "switch_at": "4:diloco", "event": "resume", "fragments": 2, "norm": "batch"})",
       R"({"ranks": 3, "strategy": "diloco", "switch_at": "3:ddp", "norm": "batch", "tie": "module_twice"})",
       R"({"ranks": 2, "strategy": "local_sgd", "switch_at": "4:diloco", "unused": "step", "optimizer": "torch.Adam"})"});
  refused(R"({"ranks": 2, "switch_at": "3:local_sgd", "early_update": true, "dtype": "float32"})", "early_update");
}

TEST_CASE("[L03] a norm on a device knows nothing of the gaps between gradients, and adds up in one order") {
  right(
      {R"({"device": "fake", "odd": "scalar", "clip_norm": 0.3})",
       R"({"ranks": 2, "device": "fake", "odd": "scalar", "clip_norm": 0.3, "accumulate": 2})",
       R"({"device": "fake", "model": "conv", "dtype": "float32", "norm": "batch", "frozen": "always", "rule": "other",
             "groups": "rates", "listed": "once", "clip_norm": 0.3, "schedule": "step", "loss": "masked",
             "bad_sample": -1, "event": "net", "resume_ranks": 0})",
       R"({"ranks": 3, "strategy": "fsdp", "model": "conv", "cells": 3, "event": "resume", "device": "fake",
             "odd": "strided", "dropout": 0.25, "optimizer": "torch.AdamW", "clip_norm": 0.3, "bucket_mb": 0.001})",
       R"({"ranks": 2, "device": "fake", "model": "conv", "norm": "layer", "dropout": 0.25, "tie": "two_names",
             "unused": "data", "optimizer": "adamw", "clip_norm": 0.3, "shuffle": true, "bucket_mb": 0.001,
             "event": "kill", "kill_at": "voted", "again": "other"})"});
}

TEST_CASE("[T01] a validation that is made again, since a rank died behind it, is in the metrics once") {
  right({R"({"ranks": 2, "validate": 7, "event": "kill", "kill_at": "validated"})",
         R"({"ranks": 2, "validate": 7, "event": "kill", "kill_at": "validated", "hurt_rank": "first"})",
         R"({"ranks": 3, "validate": 31, "event": "lose", "kill_at": "validated", "hurt_rank": "first"})"});
}

TEST_CASE("[L03] a hook's state comes to the device of the gradients") {
  right({R"({"device": "fake", "comm_hook": "owing", "event": "resume"})",
         R"({"ranks": 2, "device": "fake", "comm_hook": "powersgd", "event": "resume", "dtype": "float32"})"});
}
