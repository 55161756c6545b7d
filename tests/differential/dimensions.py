"""What `./dev differential` draws: the dimensions of a job and their values, which jobs make no sense, and which are refused."""

import pathlib
import re

# Of each dimension the first value is the simplest, and job.hpp's default.
DIMENSIONS = {
    "ranks": [1, 2, 3, 4],
    "strategy": ["ddp", "fsdp", "fsdp/gathered", "shard_grad_op", "hybrid_shard", "no_shard", "zero1", "zero2", "local_sgd", "diloco", "gossip",
                 "parameter_server", "pipeline", "tensor_parallel", "pipeline/dp=2,pp=2", "tensor_parallel/dp=2,tp=2", "pipeline/fsdp=2,tp=2"],
    "backend": ["shm", "gloo"],
    "loop": ["custom", "framework"],
    "device": ["cpu", "fake"],
    "model": ["mlp", "conv", "tokens"],
    "cells": [1, 2, 3],
    "dtype": ["float64", "float64", "float64", "float32"],
    "norm": ["none", "layer", "batch"],
    "dropout": [0, 0.25],
    "tie": ["none", "two_names", "module_twice", "output"],
    "odd": ["none", "scalar", "empty", "strided", "bfloat16"],
    "frozen": ["none", "always", "later", "first", "toggled"],
    "unused": ["none", "always", "step", "micro_batch", "rank", "data"],
    "padding_idx": [-1, 0],
    "optimizer": ["sgd", "adamw", "torch.SGD", "torch.Adam", "torch.AdamW", "torch.RMSprop", "torch.Adagrad"],
    "rule": ["plain", "momentum", "other"],
    "groups": ["one", "rates", "zero", "decay"],
    "listed": ["once", "twice"],
    "weight_decay": [0, 0.1],
    "no_decay": ["", "norms", "*.bias"],
    "clip_norm": [0, 0.3],
    "schedule": ["constant", "cosine", "step", "floor"],
    "warmup_steps": [0, 3],
    "loss": ["mean", "masked"],
    "scale": [1, 1e6],
    "samples": [48, 50, 29, 13, 3, 1],
    "batch_size": [12, 24],
    "accumulate": [1, 2],
    "drop_last": [True, False],
    "shuffle": [False, True],
    "feed": ["loader", "named", "uneven"],
    "balance": ["equal", "weights"],
    "max_steps": [0, 6],
    "bad_sample": [-1, 4],
    "bucket_mb": [25, 1e-3],
    "comm_hook": ["none", "fp16", "bf16", "powersgd", "owing"],
    "powersgd_rank": [1, 2],
    "broadcast_buffers": [True, False],
    "sync_batchnorm": [False, True],
    "static_graph": [False, True],
    "early_update": [False, True],
    "checkpointing": ["none", "block"],
    "graphs": [False, True],
    "vote": ["step", "late"],
    "amp": ["none", "bf16", "fp16"],
    "validate": [0, 7, 31],
    "loss_scaler": ["auto", "on"],
    "loss_scale_interval": [2000, 2],
    "on_not_finite": ["skip", "stop", "skip:1"],  # the last: max_skipped_steps 1
    "shards": ["plain", "each", "one_by_one", "offload"],
    "units": ["block", "none", "numel:60"],
    "server_shares": [1, 2],
    "workers": [1, 0, 3],
    "stages": ["1f1b", "gpipe", "zero_bubble"],
    "sync_every": [2, 3],
    "outer_momentum": [0.9, 0],
    "fragments": [1, 2],
    "overlap": [0, 1],
    "switch_at": ["", "3:ddp", "3:local_sgd", "4:diloco"],
    "staleness": [0, 1, 2],
    "verify_every": [0, 2],
    "snapshot_every": [10, 2],
    "desk": [False, True],
    "renewed": [False, True],
    "touched": [False, True],
    "event": ["none", "resume", "kill", "lose", "leave", "all", "infinite", "net", "disk", "stop"],
    "stop_at": ["forward", "validate"],
    "resume_ranks": [0, 1, 2],
    "resume_batch": [0, 12, 24],
    "resume_strategy": ["", "ddp", "fsdp", "zero1", "local_sgd", "diloco", "gossip"],
    "kill_at": ["backward", "forward", "collective", "vote", "voted", "committed", "optimizer", "data", "buckets", "reduced", "save", "validate", "validated", "end", "distribute"],
    "hurt_step": [3, 0, 6],
    "hurt_rank": ["last", "first"],
    "again": ["none", "other", "newcomer"],
}

LOCAL = ("local_sgd", "diloco")
APART = (*LOCAL, "gossip")
HOOKLESS = ("parameter_server", "gossip")
MESHES = [strategy for strategy in DIMENSIONS["strategy"] if strategy.startswith(("pipeline", "tensor_parallel"))]

# What is drawn less often than the other values of its dimension: one value in so many draws.
RARE = {
    "strategy": {"parameter_server": 2} | {mesh: 3 for mesh in MESHES},
    "backend": {"gloo": 4},
    "device": {"fake": 3},
    "dtype": {"float32": 6},
    "odd": {"bfloat16": 12},
    "scale": {1e6: 12},
    "samples": {3: 12, 1: 12},
    "feed": {"named": 4, "uneven": 6},
    "balance": {"weights": 4},
    "bad_sample": {4: 6},
    "comm_hook": {"fp16": 8, "bf16": 8, "powersgd": 6, "owing": 4},
    "static_graph": {True: 6},
    "early_update": {True: 6},
    "amp": {"bf16": 8, "fp16": 8},
    "on_not_finite": {"stop": 3, "skip:1": 3},
    "switch_at": {"3:ddp": 3, "3:local_sgd": 3, "4:diloco": 3},
    "event": {"kill": 6, "lose": 8, "leave": 8, "all": 12, "infinite": 8, "net": 6, "disk": 12, "stop": 12},
}

SIMPLEST = {name: values[0] for name, values in DIMENSIONS.items()}


class Refusal:
    """Jobs that Troupe refuses before the first update: `when` says which, `says` is the line's words as docs/numbers.md has them (… for a value),
    `between` are the dimensions of which one has to change."""

    def __init__(self, between, when, says):
        self.between, self.when, self.says = between.split(), when, says
        self.words = re.compile(".*".join(map(re.escape, says.split("…"))))

    def is_in(self, verdict):
        return self.words.search(verdict) is not None


SHARDED = ("fsdp", "fsdp/gathered", "shard_grad_op", "hybrid_shard", "no_shard", "zero1", "zero2")


def keeps_parts(strategy):
    return strategy in SHARDED


def is_mesh(strategy):
    return strategy.startswith(("pipeline", "tensor_parallel"))


def is_local(job):
    """Its ranks meet every few steps, all the time or some of it."""
    return job["strategy"] in LOCAL or job["resume_strategy"] in LOCAL or job["switch_at"].endswith(LOCAL)


def trains_apart(job):
    """Its ranks have models that differ, all the time or some of it."""
    return is_local(job) or "gossip" in (job["strategy"], job["resume_strategy"])


def is_diloco(job):
    return "diloco" in (job["strategy"], job["resume_strategy"], job["switch_at"][2:])


def kills(job):
    return job["event"] in ("kill", "lose")


def hurts(job):
    """Something happens to a rank at `kill_at`."""
    return kills(job) or job["event"] in ("leave", "all", "net", "disk", "stop")


def has_branch(job):
    """Its steps do not all use the same parameters."""
    return job["unused"] not in ("none", "always") or job["frozen"] in ("later", "first", "toggled")


def is_rough(job):
    """Something of it is rounded to few bits."""
    return job["comm_hook"] not in ("none", "owing") or job["amp"] != "none" or job["odd"] == "bfloat16"


def has_scaler(job):
    return job["loss_scaler"] == "on" or job["amp"] == "fp16"


def phases(job):
    """(ranks, batch size, strategy) of the run and of the one that resumes it."""
    first = job["ranks"], job["batch_size"], job["strategy"]
    second = job["resume_ranks"] or first[0], job["resume_batch"] or first[1], job["resume_strategy"] or first[2]
    return [first, second] if job["event"] == "resume" else [first]


def data_ranks(strategy, ranks):
    """How many ranks have samples of their own."""
    if not is_mesh(strategy):
        return ranks
    return 2 if "dp=2" in strategy or "fsdp=2" in strategy else 1


def is_server(strategy):
    return strategy == "parameter_server"


def is_cut(job, ranks, batch, strategy):
    parts = 1 if job["balance"] != "equal" else data_ranks(strategy, ranks)  # else shares need not be equal
    if is_server(strategy):
        parts *= job["server_shares"]
    return batch % (job["accumulate"] * parts) == 0


def any_phase(job, holds):
    """Of a phase's strategy."""
    return any(holds(strategy) for _, _, strategy in phases(job))


REFUSED = [
    Refusal("early_update device", lambda j: j["early_update"] and j["device"] != "cpu", "it works on the CPU only so far"),
    Refusal("graphs strategy", lambda j: j["graphs"] and any_phase(j, lambda s: s in SHARDED or is_mesh(s)),
            "does more in forward and backward than launch kernels"),
    Refusal("graphs switch_at", lambda j: j["graphs"] and j["switch_at"], "with switch_at moves to different memory while the job runs"),
    Refusal("graphs checkpointing", lambda j: j["graphs"] and j["checkpointing"] != "none",
            "activation_checkpointing restores the state of the random number generator in backward"),
    Refusal("graphs loss", lambda j: j["graphs"] and j["loss"] == "masked", "cuda_graphs fixes what is computed"),
    Refusal("vote strategy resume_strategy", lambda j: j["vote"] == "late" and any_phase(j, lambda s: s in APART), "has replicas that differ"),
    Refusal("vote strategy", lambda j: j["vote"] == "late" and any_phase(j, lambda s: is_server(s) or is_mesh(s)), "waits for the vote"),
    Refusal("vote comm_hook", lambda j: j["vote"] == "late" and j["comm_hook"] in ("powersgd", "owing"),
            "has a comm_hook with a state that goes back with a step"),
    Refusal("vote switch_at", lambda j: j["vote"] == "late" and j["switch_at"], "waits for the vote before it switches"),
    Refusal("vote optimizer", lambda j: j["vote"] == "late" and j["optimizer"].startswith("torch."),
            "must know on the host whether a step is applied"),
    Refusal("graphs vote desk", lambda j: (j["graphs"] or j["vote"] == "late") and j["desk"], "a metric can't be logged with …"),
    Refusal("vote touched", lambda j: j["vote"] == "late" and j["touched"], "with vote late the device decides whether a step is applied"),
    Refusal("vote loss", lambda j: j["vote"] == "late" and j["loss"] == "masked", "vote late lets the device update parameters"),
    Refusal("shards vote", lambda j: j["shards"] == "offload" and j["vote"] == "late", "with fsdp_cpu_offload has the optimizer in the host's memory"),
    Refusal("shards strategy", lambda j: j["shards"] == "offload" and any_phase(j, is_mesh), "keeps its shards on the device"),
    Refusal("shards strategy", lambda j: j["shards"] == "each" and any_phase(j, lambda s: s.startswith("pipeline")),
            "a pipeline has several micro-batches in flight, and reduces their gradients after the last one"),
    Refusal("schedule optimizer", lambda j: j["schedule"] == "floor" and j["optimizer"].startswith("torch."),
            "optimizer has its own rates, which a schedule multiplies"),
    Refusal("samples drop_last resume_batch batch_size", lambda j: j["feed"] != "uneven" and j["drop_last"] and any(
        j["samples"] < batch for _, batch, _ in phases(j)), "… samples are fewer than one batch of …"),
    Refusal("batch_size accumulate ranks resume_batch resume_ranks server_shares", lambda j: j["feed"] != "uneven" and any(
        not is_cut(j, *phase) for phase in phases(j)), "can't be shared out in equal parts to … rank"),
    Refusal("frozen", lambda j: j["frozen"] == "first", "parameter … is trained now, and was frozen when the model was distributed"),
    Refusal("feed schedule", lambda j: j["feed"] == "uneven" and j["schedule"] == "step",
            "step goes by epochs, and a loop without rank.loader has none"),
    Refusal("feed schedule max_steps", lambda j: j["feed"] == "uneven" and j["schedule"] in ("cosine", "floor") and j["max_steps"] == 0,
            "cosine goes by the run's length"),
    Refusal("strategy tie", lambda j: j["tie"] not in ("none", "output") and any_phase(j, is_mesh), "parameter … is in the model under two names"),
    Refusal("feed strategy", lambda j: j["feed"] == "uneven" and any_phase(j, is_mesh),
            "uneven: with strategy … several ranks work on the same samples"),
    Refusal("feed server_shares", lambda j: j["feed"] == "uneven" and j["server_shares"] > 1,
            "already gives ranks different numbers of batches in a step"),
    Refusal("feed accumulate", lambda j: j["feed"] == "uneven" and j["accumulate"] > 1, "uneven: grad_accum_steps is …"),
    Refusal("feed balance", lambda j: j["feed"] == "uneven" and j["balance"] != "equal",
            "balance is '…', and with rank.uneven the program decides how much each rank has"),
    Refusal("balance strategy", lambda j: j["balance"] != "equal" and any_phase(j, is_mesh),
            "balance: with strategy … several ranks work on the same samples"),
    Refusal("balance strategy", lambda j: j["balance"] != "equal" and any_phase(j, is_server), "ranks take parts of a batch on demand"),
    Refusal("early_update clip_norm", lambda j: j["early_update"] and j["clip_norm"] > 0,
            "clip_norm must know all of the gradient before any of it is applied"),
    Refusal("early_update loss_scaler amp", lambda j: j["early_update"] and has_scaler(j),
            "the loss scaler must see all of the gradient before any of it is applied"),
    Refusal("early_update loss", lambda j: j["early_update"] and j["loss"] == "masked",
            "early_update updates parameters"),
    Refusal("early_update comm_hook", lambda j: j["early_update"] and j["comm_hook"] != "none",
            "comm_hook … works on whole gradients, and early_update applies them piece by piece"),
    Refusal("early_update strategy resume_strategy", lambda j: j["early_update"] and any_phase(j, lambda s: s != "ddp"),
            "strategy … has its own way to update"),
    Refusal("early_update switch_at", lambda j: j["early_update"] and j["switch_at"], "switch_at changes what updates the model"),
    Refusal("early_update optimizer", lambda j: j["early_update"] and j["optimizer"].startswith("torch."),
            "the optimizer … updates whole parameters only"),
    Refusal("strategy loss", lambda j: j["loss"] == "masked" and any_phase(j, is_server),
            "the strategy's server updates parameters"),
    Refusal("comm_hook strategy resume_strategy", lambda j: j["comm_hook"] != "none" and any_phase(j, lambda s: s in SHARDED),
            "reduces whole gradients, … reduces shards"),
    Refusal("comm_hook strategy", lambda j: j["comm_hook"] != "none" and any_phase(j, is_mesh), "works on ddp's buckets, which … does not have"),
    Refusal("comm_hook strategy resume_strategy", lambda j: j["comm_hook"] != "none" and any_phase(j, lambda s: s in HOOKLESS),
            "is for buckets of gradients, and … has none"),
    Refusal("comm_hook strategy resume_strategy", lambda j: j["comm_hook"] == "powersgd" and any_phase(j, lambda s: s in LOCAL),
            "powersgd keeps an error for each bucket of gradients"),
    Refusal("touched strategy resume_strategy", lambda j: j["touched"] and any_phase(j, keeps_parts),
            "the program itself has changed …"),
    Refusal("touched strategy", lambda j: j["touched"] and j["strategy"].startswith("pipeline"),
            "a rank has the parameters of its own stage only"),
    Refusal("strategy ranks resume_ranks", lambda j: any(s == "hybrid_shard" and r > 1 and r % 2 for r, _, s in phases(j)),
            "so their shards do not match"),
    Refusal("odd strategy switch_at", lambda j: j["odd"] == "bfloat16" and (is_local(j) or any_phase(j, lambda s: s in LOCAL)),
            "has another dtype than the model's first parameter"),
    Refusal("odd strategy", lambda j: j["odd"] == "bfloat16" and any_phase(j, is_mesh), "parameter … is not float32"),
    Refusal("overlap fragments sync_every", lambda j: j["overlap"] > 0 and j["overlap"] * j["fragments"] >= j["sync_every"],
            "a fragment would be under way for …, and the next one begins after …"),
    Refusal("strategy accumulate", lambda j: j["accumulate"] > 1 and any_phase(j, is_server), "cuts a step's batch itself"),
    Refusal("sync_batchnorm", lambda j: j["sync_batchnorm"] and any_phase(j, is_server), "the ranks of … run forward at different times"),
    Refusal("sync_batchnorm", lambda j: j["sync_batchnorm"] and any_phase(j, is_mesh),
            "it would wait for ranks that run another stage or micro-batch"),
    Refusal("on_not_finite event", lambda j: j["on_not_finite"] == "stop" and j["event"] == "infinite", "the loss is not finite"),
    Refusal("on_not_finite event", lambda j: j["on_not_finite"] == "skip:1" and j["event"] == "infinite", "step was… skipped, the last because"),
]


def settle(job):
    """Gives dimensions that mean nothing in this job their simplest value, and makes the numbers fit. Changes the job, and returns it."""
    before = None
    while job != before:
        before = dict(job)
        settle_once(job)
    return job


def settle_once(job):
    simple = lambda *names: job.update({name: SIMPLEST[name] for name in names})
    uneven = ["feed"] if job["feed"] == "uneven" else []
    if job["loop"] == "framework" or not job["optimizer"].startswith("torch.") or any_phase(job, is_server):
        simple("renewed")
    if job["model"] != "tokens":
        simple("padding_idx")
        if job["tie"] == "output":
            simple("tie")
    if job["device"] != "cpu":
        simple("backend")  # NCCL, and for tensors of the CPU whatever fits
        if any_phase(job, keeps_parts):
            simple("touched")  # a parameter that is not there is the device's end: docs/gpu.md, Absent parameters
    else:
        simple("graphs", "vote")
    if hurts(job):
        simple("vote")  # a job that recovers can't use it
    cuts_parameters = any_phase(job, lambda s: s in SHARDED or "fsdp=" in s)
    if not cuts_parameters or job["shards"] == "each" and job["accumulate"] == 1 or job["shards"] == "offload" and job["device"] == "cpu":
        simple("shards")
    if not any_phase(job, lambda s: s.startswith("fsdp") or s in SHARDED[2:5]):
        simple("units")
    if not any_phase(job, is_server) or job["event"] == "infinite":  # which rank has that sample goes by demand
        simple("server_shares")
    if not any_phase(job, lambda s: s.startswith("pipeline")):
        simple("stages")
    # What a forward does on the host is done once, when its graph is written. The fake device has no kernels of convolutions and norms.
    host_part = has_branch(job) or job["event"] in ("resume", "leave", "infinite")
    if host_part or job["norm"] != "none" or job["model"] == "conv":
        simple("graphs")
    if job["graphs"]:
        simple("shuffle")
    if job["event"] != "resume":
        simple("stop_at", "resume_ranks", "resume_batch", "resume_strategy")
    # A rank has several batches in the validation, and an epoch ends where the run is stopped.
    per_epoch = job["samples"] // job["batch_size"] if job["drop_last"] else -(-job["samples"] // job["batch_size"])
    if job["validate"] < 31 or job["feed"] == "uneven" or per_epoch == 0 or 4 % per_epoch:
        simple("stop_at")
    if is_mesh(job["strategy"]):  # f32 only
        job["dtype"] = "float32"
        job["ranks"] = 4 if "/" in job["strategy"] else max(job["ranks"], 2)
        if job["event"] == "resume":
            simple("resume_ranks")
        if job["norm"] == "batch":
            simple("norm")
        if job["strategy"].startswith("pipeline"):  # a cell for each stage at least
            job["ranks"] = job["ranks"] if "/" in job["strategy"] else min(job["ranks"], 3)
            job["cells"] = max(job["cells"], min(job["ranks"], 3)) if job["strategy"] == "pipeline" else 3
    if job["tie"] == "none" or not job["optimizer"].startswith("torch."):
        simple("listed")
    if job["early_update"]:
        job["dtype"] = "float32"
        if job["odd"] == "bfloat16":
            simple("odd")
    if is_rough(job):
        job["dtype"] = "float32"
        if not job["optimizer"].lower().endswith("sgd"):  # Adam makes whole steps of gradients that are nothing but rounding
            simple("optimizer")
    # What fits goes by each rank's own mean, and sums travel divided by a number that is Troupe's to choose.
    if job["amp"] == "fp16" or job["comm_hook"] == "fp16" and has_scaler(job):
        simple("loss", "balance", "sync_batchnorm", "server_shares")
        # LibTorch's casts are all threads', and gone when another rank's forward ends.
        if job["amp"] == "fp16" and job["tie"] in ("two_names", "module_twice") and job["ranks"] > 1:
            simple("tie")
    if not has_scaler(job):
        simple("loss_scale_interval")
        if job["comm_hook"] == "fp16":  # it may overflow
            simple("on_not_finite")
    if job["event"] == "infinite" and job["on_not_finite"] != "skip":  # the rank with that loss must have a sample then
        simple("drop_last", *uneven)
    if job["optimizer"] == "adamw":
        simple("rule")
    if job["no_decay"] == "norms" and job["norm"] == "none":
        simple("no_decay")
    # Of an optimizer that the program groups itself it is refused, which tests/launch shows.
    if job["weight_decay"] == 0 or job["groups"] != "one" or job["frozen"] == "first" or job["optimizer"].startswith("torch."):
        simple("no_decay")
    if job["norm"] != "batch":
        simple("broadcast_buffers")
        if not is_mesh(job["strategy"]) and not is_server(job["strategy"]):  # which refuse it
            simple("sync_batchnorm")
    if job["sync_batchnorm"]:
        simple("graphs")
    if job["switch_at"]:
        if job["strategy"] not in ("ddp", *LOCAL) or job["strategy"] == job["switch_at"][2:]:
            simple("switch_at")
        # Of what only some ranks use, and of unequal numbers of steps, optimizers have no mean.
        # In ddp ranks may have their own buffers.
        simple("broadcast_buffers", "resume_strategy")
        if job["strategy"] in LOCAL:
            simple("samples", "drop_last", *uneven)
        if job["unused"] in ("rank", "data"):
            simple("unused")
        if hurts(job):
            simple("event")
    if job["touched"] and any_phase(job, keeps_parts):
        simple("samples", "drop_last", "loss")  # or no step is applied
        if job["backend"] == "gloo" or job["strategy"] == "fsdp/gathered":  # parameters are not there at all
            simple("touched")
    if not is_local(job):
        simple("sync_every")
    if trains_apart(job):
        simple("scale")
        simple("sync_batchnorm")  # the reference runs one replica after the other
    if not is_diloco(job):
        simple("outer_momentum", "fragments", "overlap")
    if job["comm_hook"] != "powersgd":
        simple("powersgd_rank")
    else:
        job["dtype"] = "float32"
        if kills(job):  # a lost rank's error is lost
            simple("event")
    if job["comm_hook"] in ("powersgd", "owing"):
        # Ranks have their own state; a scale that changes, and sums of another batch size, change its unit.
        simple("sync_batchnorm", "loss_scaler", "amp", "resume_batch")
    if job["comm_hook"] == "owing":
        # It sends of what it owes to a parameter that no rank uses, too.
        simple("unused")
        if job["frozen"] in ("later", "toggled"):
            simple("frozen")
        if job["resume_strategy"] and (job["strategy"] in LOCAL) != (job["resume_strategy"] in LOCAL):
            simple("resume_strategy")  # gradients and changes of parameters are owed in different units
        if job["event"] == "lose":
            simple("event")
        if kills(job):  # how much of what is owed is a rank's
            simple("balance")
        if job["kill_at"] == "buckets":  # that of a second bucket, which not every job has
            simple("kill_at")
    if job["ranks"] == 1:
        simple("balance")
    if job["balance"] != "equal":  # whose samples they are is for equal parts to show
        simple("shuffle", "dropout")
        if job["event"] == "infinite":
            simple("event")
        if job["unused"] in ("rank", "data"):
            simple("unused")
        if job["norm"] == "batch":
            simple("norm")
        if trains_apart(job):
            simple("balance")
    if job["accumulate"] == 1 and job["unused"] == "micro_batch":
        simple("unused")
    if job["unused"] == "rank" and job["ranks"] == 1:
        simple("unused")
    if job["static_graph"] and has_branch(job):
        simple("static_graph")  # a promise that this job breaks
    if job["samples"] <= job["bad_sample"] or job["feed"] == "uneven":
        simple("bad_sample")
    if job["feed"] == "uneven":  # a loop with data of its own
        job["loop"] = "custom"
        simple("workers", "samples", "batch_size", "drop_last", "shuffle")
        simple("resume_ranks", "resume_batch", "graphs")
    if job["unused"] in ("rank", "data"):  # whose branch goes by how samples are shared out
        simple("validate")
    if job["event"] == "net" and is_local(job):  # of what is under way for a step the ranks' differences are taken anew
        simple("overlap")
    # Time decides how much of what is under way is lost.
    if job["event"] in ("kill", "lose", "leave", "net") and job["strategy"] == "gossip":
        simple("event")
    if job["kill_at"] == "data" and job["feed"] == "uneven":  # which never comes there
        simple("kill_at")
    if job["kill_at"] in ("validate", "validated") and (job["validate"] == 0 or trains_apart(job)):  # whose parts of the loss go by the rank
        simple("kill_at")
    if job["kill_at"] in ("validate", "validated", "end", "distribute"):  # the run's last, and its first
        simple("hurt_step")
        job["again"] = "newcomer" if job["again"] == "newcomer" else "none"
    if job["kill_at"] == "save" or 0 < job["max_steps"] <= job["hurt_step"]:
        simple("hurt_step")
    # They go on from a mean; and where the last of them sees that another is replaced, what that one owed is lost.
    if job["event"] == "all" and (trains_apart(job) or job["comm_hook"] in ("owing", "powersgd")):
        simple("event")
    if job["event"] == "leave":  # between two steps
        simple("kill_at")
    if job["event"] == "lose" and job["kill_at"] == "distribute":  # rank 0's values are lost, and all begin anew
        simple("hurt_rank")
    if job["event"] in ("lose", "leave") and job["feed"] == "uneven":  # whose batches are left is for the last rank to show
        simple("hurt_rank")
    if trains_apart(job) and job["kill_at"] == "data":  # where the next step's batch may be made already
        simple("hurt_rank")
    if job["event"] not in ("kill", "net") or job["event"] == "net" and job["again"] == "newcomer":
        simple("again")
    if job["ranks"] == 1 or trains_apart(job) or job["comm_hook"] in ("owing", "powersgd"):
        simple("again")
    # Rank 0's buffers are gone, or moved on, where each rank has its own.
    if job["ranks"] == 1 or not job["broadcast_buffers"]:
        simple("hurt_rank", "again")
    if job["event"] == "all" and job["ranks"] > 1 and not job["broadcast_buffers"]:
        simple("event")
    # Of a mesh without copies a lost rank takes its part along.
    alone = is_mesh(job["strategy"]) and data_ranks(job["strategy"], job["ranks"]) == 1
    if (kills(job) or job["event"] == "leave") and (job["ranks"] == 1 or alone):
        simple("event")
    if job["event"] in ("lose", "leave") and (is_mesh(job["strategy"]) or job["strategy"] == "hybrid_shard"):
        simple("event")  # of which the number of ranks is fixed
    if job["event"] == "lose" and job["strategy"] not in ("ddp", *APART):  # they may run steps again, with fewer ranks
        simple("dropout", "norm", *uneven)
        if job["hurt_step"] == 0 or job["kill_at"] == "distribute":  # before there is a copy of its shard
            simple("hurt_step", "kill_at")
        if job["amp"] == "fp16":  # what is beyond f16 goes by a rank's number of samples
            simple("amp")
        if job["unused"] in ("rank", "data"):
            simple("unused")
    if job["event"] == "lose" and job["kill_at"] == "buckets":  # not every job has a second one
        simple("kill_at")
    if kills(job) and trains_apart(job) and job["kill_at"] in ("buckets", "reduced"):  # places of outer steps only
        simple("kill_at")
    # If a rank dies in a save, that may be made of its steps, or made again of the newcomer's.
    if kills(job) and is_local(job) and job["kill_at"] == "save":
        simple("kill_at")
    # If a rank dies in or just behind an outer step, time decides which of the others have done it.
    if kills(job) and is_local(job):
        early = job["kill_at"] in ("distribute", "backward", "forward", "vote", "data")
        if job["overlap"] > 0:
            job["sync_every"] = 3
            simple("fragments", "comm_hook")
            if not early:
                simple("kill_at")
        elif early:
            simple("sync_every", "fragments")
    if job["comm_hook"] != "fp16" or job["loss"] == "masked":  # sums travel divided by a number that is Troupe's to choose
        simple("scale")
    if job["scale"] != 1:  # its gradients are large, and nothing else about it
        simple("clip_norm")
        if not job["optimizer"].lower().endswith("sgd"):
            simple("optimizer")
    if job["amp"] != "none" and job["norm"] == "batch":  # variances of a few rows in bf16
        simple("norm")
        if job["comm_hook"] == "bf16" or trains_apart(job):
            simple("scale")
    if job["norm"] == "batch":
        if job["model"] != "tokens":  # of one sample it has no statistics
            simple("samples", "drop_last")
        if not job["broadcast_buffers"]:
            simple("validate")  # of each rank's own
        if job["strategy"] == "parameter_server":
            simple("norm")
    if not job["drop_last"] or job["feed"] == "uneven" or job["samples"] < 4:
        simple("dropout")  # a mask goes by a rank's place in the batch
    if job["strategy"] == "parameter_server":
        simple("shuffle", "unused", "dropout")  # ranks take shares by demand
    if job["strategy"] != "parameter_server" or job["ranks"] > 1:  # whose gradient is how old goes by who is first
        simple("staleness")
    if job["staleness"] > 0:
        simple("resume_ranks", *uneven)
    if not hurts(job):
        simple("kill_at", "hurt_step", "hurt_rank", "again")


NOT_IN_PYTHON = ("shuffle", "comm_hook", "amp", "switch_at", "staleness", "renewed", "touched")
# What is right is the same, whatever they are, or they say something of one of the above.
NOTHING_TO_PYTHON = set(
    "backend device loop listed balance bucket_mb powersgd_rank broadcast_buffers static_graph early_update checkpointing graphs vote loss_scaler "
    "loss_scale_interval on_not_finite shards units server_shares workers stages sync_every outer_momentum fragments overlap verify_every snapshot_every desk kill_at hurt_step "
    "hurt_rank stop_at".split()
)


def unknown_to_python():
    """Dimensions that pytorch.py has never heard of: it would compare another job."""
    folder = pathlib.Path(__file__).parent
    text = (folder / "pytorch.py").read_text() + (folder / "pytorch_net.py").read_text()
    known = {name for name in DIMENSIONS if re.search(rf"[\"']{name}[\"']|\.{name}\b", text)}
    return sorted(DIMENSIONS.keys() - known - NOTHING_TO_PYTHON - set(NOT_IN_PYTHON))


def for_python(job):
    """The job with what pytorch.py does not cover at its simplest. Changes the job, and returns it."""
    for name in NOT_IN_PYTHON:
        job[name] = SIMPLEST[name]
    if job["feed"] == "uneven":  # the loop there validates by epochs
        job["validate"] = SIMPLEST["validate"]
    for name, values in (("resume_strategy", APART), ("event", ("lose", "leave"))):
        if job[name] in values:
            job[name] = SIMPLEST[name]
    if job["strategy"] in APART or job["feed"] == "uneven" and is_mesh(job["strategy"]):
        job["strategy"] = SIMPLEST["strategy"]
    return settle(job)


def for_processes(job):
    """A process is hurt by a signal. Changes the job, and returns it."""
    if job["event"] in ("leave", "all", "net", "disk", "stop"):
        job["event"] = "kill"
    for name in ("again", "device"):
        job[name] = SIMPLEST[name]
    return settle(job)


def refusals(job):
    return [refusal for refusal in REFUSED if refusal.when(job)]


def short(job):
    """What differs from the simplest job."""
    return {name: value for name, value in job.items() if value != SIMPLEST[name]}
