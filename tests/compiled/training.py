"""Losses of whole runs of compiled models beside PyTorch's."""
import json
import shutil

import torch

import models
from ring import FOLDER, TROUPE, compiled, passed, troupe
from troupe.check import round_otherwise

RATE, BATCH = 0.01, 8


def reference(name, dtype, steps, parts, momentum=0.9, clip=0.0, autocast=None, seed=None):
    """Losses of PyTorch's DDP in one process: each batch in equal `parts` (ranks, times micro-batches); the mean of their gradients, or over their
    elements. With a seed: of parameters that are off by some roundings."""
    model, loss, batch = models.made(name, getattr(torch, dtype))
    model.train()
    if seed is not None:
        round_otherwise(model, seed)
    data = models.Packed(name, getattr(torch, dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    losses = []
    for step in range(steps):
        begin, part = step % (len(data) // BATCH) * BATCH, BATCH // parts
        optimizer.zero_grad()
        sums, count = 0.0, 0
        for number in range(parts):
            rows = [data[begin + number * part + i] for i in range(part)]
            if isinstance(rows[0], dict):
                mine = {field: torch.stack([row[field] for row in rows]) for field in rows[0]}
            else:
                mine = tuple(torch.stack([torch.as_tensor(row[i]) for row in rows]) for i in range(2))
            with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
                result = loss(model, mine)
            if isinstance(result, dict):
                result = result["loss"]
            total, elements = result if isinstance(result, tuple) else (result, 1)
            total.backward()
            sums, count = sums + total.item(), count + int(elements)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= count
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(sums / count)
    return losses


def losses_of(run):
    """step -> loss, of a run's records; what was done again stands twice, and the later counts."""
    losses = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "train":
            losses[record["step"]] = record["loss_metrics/global_avg_loss"]
    return losses


def packed(name, dtype):
    data = FOLDER / f"{name}.{dtype}.data"
    if data.exists():
        return True
    ran = troupe("pack", "entry.py:data", "-o", data, "--file_samples", 20, MODEL=name, DTYPE=dtype)
    return passed(f"train {name} {dtype}: packed", ran.returncode == 0, ran.stderr[-300:])


def launch(run, name, dtype, ranks, steps, *more, kind="", momentum=0.9, **environment):
    return troupe("launch", "--nproc", ranks, "--run-dir", run, TROUPE, "train", "--model", f"{name}{kind}.{dtype}.tm", "--data", "packed", "--data_dir",
                  f"{name}.{dtype}.data", "--batch_size", BATCH, "--epochs", 1000, "--max_steps", steps, "--lr", RATE, "--momentum", momentum,
                  "--weight_decay", 0, "--schedule", "constant", "--warmup_steps", 0, "--shuffle", "false", "--log_interval", 1,
                  "--validate_every", 0, *more, **environment)


def worst(got, wanted):
    if set(got) != set(range(1, len(wanted) + 1)):
        return float("inf")
    return max(abs(got[i + 1] - w) / max(1.0, abs(w)) for i, w in enumerate(wanted))


def new_run(name):
    run = FOLDER / "runs" / name
    shutil.rmtree(run, ignore_errors=True)
    return run


def compare(run, ran, wanted, limit, others=lambda: []):
    """`others()`: losses that PyTorch has if parameters are off by some roundings, which decide about ReLUs: what those differ by is allowed."""
    far = worst(losses_of(run), wanted) if ran.returncode == 0 else float("inf")
    if limit <= far < float("inf"):
        spread = max((worst(dict(enumerate(other, 1)), wanted) for other in others()), default=0)
        if spread > limit:
            return passed(f"train {run.name}: {len(wanted)} losses within {far:.1e}; rounding alone makes {spread:.1e}", far < 2 * spread)
    return passed(f"train {run.name}: {len(wanted)} losses within {far:.1e}", far < limit, f"limit {limit}; {(ran.stderr + ran.stdout)[-400:]}")


def check_training(names, dtypes):
    for name in names:
        for dtype in dtypes:
            if compiled(name, dtype, check=False) is None or not packed(name, dtype):
                continue
            steps, limit = (50, 1e-9) if dtype == "float64" else (10, 1e-4)
            wanted = {ranks: reference(name, dtype, steps, ranks) for ranks in (1, 2, 4)}
            fault = {"TROUPE_FAULT": f"slot=1,step={steps // 2},at=collective"}
            cases = [(ranks, strategy, {}) for ranks in (1, 2, 4) for strategy in ("ddp", "fsdp")] + [(2, "ddp", fault), (2, "fsdp", fault)]
            for ranks, strategy, environment in cases:
                run = new_run(f"{name}-{dtype}-{ranks}-{strategy}{'-kill' if environment else ''}")
                ran = launch(run, name, dtype, ranks, steps, "--strategy", strategy, **environment)
                compare(run, ran, wanted[ranks], limit, lambda: [reference(name, dtype, steps, ranks, seed=seed) for seed in range(6)])
                if environment:
                    passed(f"train {run.name}: a rank was lost", '"generation":2' in (run / "metrics.jsonl").read_text())
            if dtype == "float64" and name != "resnet18":  # other ranks, other batch statistics
                run = new_run(f"{name}-{dtype}-resumed")
                first = launch(run, name, dtype, 2, steps // 2, "--strategy", "ddp")
                then = launch(run, name, dtype, 4, steps, "--strategy", "fsdp", "--resume", "latest")
                compare(run, then if first.returncode == 0 else first, wanted[2], limit)


# Name, dtype (meshes and early updates have float32 only), ranks, the parts into which a batch is cut, flags, what the reference has beside that.
COMBINATIONS = [
    ("zero1", "float64", 2, 2, ["--strategy", "zero1"], {}), ("zero2", "float64", 2, 2, ["--strategy", "zero2"], {}),
    ("accumulate-clip", "float64", 2, 4, ["--strategy", "fsdp", "--grad_accum_steps", 2, "--clip_norm", 0.3], {"clip": 0.3}),
    ("checkpointing", "float64", 2, 2, ["--strategy", "fsdp", "--activation_checkpointing", "block"], {}),
    ("blocks-by-type", "float64", 2, 2, ["--strategy", "fsdp", "--fsdp_wrap", "type:LlamaBlock"], {}),
    ("local_sgd", "float64", 2, 2, ["--strategy", "local_sgd", "--sync_every", 1], {"momentum": 0.0}),
    ("diloco", "float64", 2, 2, ["--strategy", "diloco", "--sync_every", 1, "--outer_lr", 1, "--outer_momentum", 0], {"momentum": 0.0}),
    ("parameter_server", "float64", 2, 2, ["--strategy", "parameter_server", "--staleness", 0], {}),
    ("early", "float32", 2, 2, ["--early_update", "true"], {}),
    ("hybrid", "float32", 4, 4, ["--strategy", "pipeline", "--mesh", "dp=2,fsdp=2"], {}),
    ("pipeline", "float32", 2, 2, ["--strategy", "pipeline", "--grad_accum_steps", 2], {}),
    ("pipeline-dp", "float32", 4, 4, ["--strategy", "pipeline", "--mesh", "dp=2,pp=2", "--grad_accum_steps", 2], {}),
]
TAKE_MEANS = ("parameter_server", "early")  # they update before all ranks' elements are counted; the Llama block's loss is a sum
LIMITS = {"float64": 1e-9, "float32": 1e-5}


def check_combinations(only=None):
    """The Llama block, or the GPT, with every strategy and what goes with it; recomputing by the partitioner; autocast."""
    steps = 20
    for kind, dtype, ranks, parts, flags, more in COMBINATIONS:
        name = "gpt" if kind in TAKE_MEANS else "llama"
        if (only and kind not in only) or compiled(name, dtype, check=False) is None or not packed(name, dtype):
            continue
        momentum = {"momentum": more["momentum"]} if "momentum" in more else {}
        run = new_run(f"{name}-{kind}")
        compare(run, launch(run, name, dtype, ranks, steps, *flags, **momentum), reference(name, dtype, steps, parts, **more), LIMITS[dtype])
    if only:
        return
    name, dtype = "llama", "float64"
    if compiled(name, dtype, check=False, kind="-recompute", flags=["--recompute", "0.2"]) is not None:
        run = new_run(f"{name}-recompute")
        compare(run, launch(run, name, dtype, 2, steps, "--strategy", "fsdp", kind="-recompute"), reference(name, dtype, steps, 2), 1e-9)
    if compiled("gpt", "float32", kind="-autocast", flags=["--autocast", "bfloat16"]) is not None and packed("gpt", "float32"):
        for strategy in ("ddp", "fsdp"):
            run = new_run(f"gpt-autocast-{strategy}")
            ran = launch(run, "gpt", "float32", 2, 10, "--strategy", strategy, "--use_amp", "true", kind="-autocast")
            compare(run, ran, reference("gpt", "float32", 10, 2, autocast=torch.bfloat16), 1e-2)
        for what, kind, flags, wanted in (("without --use_amp", "-autocast", [], "compiled with autocast in bfloat16"),
                                          ("in another type", "-autocast", ["--use_amp", "true", "--amp_dtype", "fp16"], "not float16")):
            ran = launch(new_run("refused"), "gpt", "float32", 1, 1, *flags, kind=kind)
            passed(f"train autocast {what} is refused", ran.returncode == 2 and wanted in ran.stderr + ran.stdout, (ran.stderr + ran.stdout)[-300:])
