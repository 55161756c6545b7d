"""`./dev compiled [PART..]`: Python models, compiled, beside PyTorch. Parts: refusals, data, models, random, costs, places, train; all without one.

refusals  what `troupe compile` and `troupe pack` do not do, and what a file's reader does not believe: each message
models    loss, gradients and buffers of models.py, one step (--check)
data      torchvision's and Hugging Face's data classes, packed; packing that is killed; `troupe.train`
random    the same of modules that a generator draws (--count, --seed, --seeds), many to a file
costs     what a step allocates and copies, beside tests/costs
places    /tmp where nothing may be executed; nothing stays there
train     losses of whole runs at 1, 2 and 4 ranks, with ddp and fsdp, a kill, a resume at another number of ranks
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "python"), str(HERE)]
TROUPE = ROOT / "build/release/launch/troupe"
os.environ["TROUPE_COMMAND"] = str(TROUPE)
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402

import costs  # noqa: E402
import models  # noqa: E402
import python_data  # noqa: E402
import places  # noqa: E402
import random_modules  # noqa: E402
import refusals  # noqa: E402
import rounding  # noqa: E402

FOLDER = ROOT / "build/compiled"
failures, successes = [], []


def passed(what, holds, why=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else ': ' + why}", flush=True)
    (successes if holds else failures).append(what)
    return holds


def troupe(*words, **more):
    environment = {**os.environ, "TROUPE_PYTHON": sys.executable, **more}
    return subprocess.run([str(TROUPE), *map(str, words)], capture_output=True, text=True, timeout=900, cwd=FOLDER, env=environment)


# What the command line calls: SOURCE.py:FUNCTION gets model and dtype by the environment.
ENTRY = f"""import os, sys
sys.path.insert(0, {str(HERE)!r})
import torch, models, random_modules
from costs import layers
def make():
    return models.made(os.environ["MODEL"], getattr(torch, os.environ["DTYPE"]))
def data():
    return models.Packed(os.environ["MODEL"], getattr(torch, os.environ["DTYPE"]))
def drawn():
    return random_modules.drawn([int(seed) for seed in os.environ["SEEDS"].split(",")])
"""


def compiled(name, dtype, check=True):
    """The file; compiles it unless it is there from the same sources."""
    path = FOLDER / f"{name}.{dtype}.tm"
    newest = max(f.stat().st_mtime for f in [*(ROOT / "python/troupe").glob("*.py"), HERE / "models.py"])
    if path.exists() and path.stat().st_mtime > newest:
        return path
    path.unlink(missing_ok=True)
    ran = troupe("compile", "entry.py:make", "-o", path, *(["--check"] if check else []), MODEL=name, DTYPE=dtype)
    line = (ran.stdout.strip().splitlines() or [""])[-1]
    passed(f"models {name} {dtype}: {line}", ran.returncode == 0, ran.stderr.strip()[-300:])
    return path if ran.returncode == 0 else None


def check_models(names, dtypes):
    for name in names:
        for dtype in dtypes:
            compiled(name, dtype)


# ------------------------------------------------------------- training

def reference(name, dtype, steps, batch_size, ranks, rate):
    """Losses of PyTorch's DDP over this number of ranks, in one process: the mean of the gradients of the ranks' parts, or over their elements."""
    model, loss, batch = models.made(name, getattr(torch, dtype))
    model.train()
    data = models.Packed(name, getattr(torch, dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    losses = []
    for step in range(steps):
        begin = step % (len(data) // batch_size) * batch_size
        part = batch_size // ranks
        optimizer.zero_grad()
        sums, count = 0.0, 0
        for rank in range(ranks):
            rows = [data[begin + rank * part + i] for i in range(part)]
            if isinstance(rows[0], dict):
                mine = {field: torch.stack([row[field] for row in rows]) for field in rows[0]}
            else:
                mine = tuple(torch.stack([torch.as_tensor(row[i]) for row in rows]) for i in range(2))
            result = loss(model, mine)
            if isinstance(result, dict):
                result = result["loss"]
            total, elements = result if isinstance(result, tuple) else (result, 1)
            total.backward()
            sums, count = sums + total.item(), count + int(elements)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= count
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


def launch(run, name, dtype, ranks, strategy, steps, rate, *more, **environment):
    return troupe("launch", "--nproc", ranks, "--run-dir", run, TROUPE, "train", "--model", f"{name}.{dtype}.tm", "--data", "packed", "--data_dir",
                  f"{name}.{dtype}.data", "--batch_size", 8, "--epochs", 1000, "--max_steps", steps, "--lr", rate, "--momentum", 0.9,
                  "--weight_decay", 0, "--schedule", "constant", "--warmup_steps", 0, "--shuffle", "false", "--log_interval", 1, "--strategy", strategy,
                  "--validate_every", 0, *more, **environment)


def worst(got, wanted):
    if set(got) != set(range(1, len(wanted) + 1)):
        return float("inf")
    return max(abs(got[i + 1] - w) / max(1.0, abs(w)) for i, w in enumerate(wanted))


def check_training(names, dtypes):
    for name in names:
        for dtype in dtypes:
            if compiled(name, dtype, check=False) is None:
                continue
            data = FOLDER / f"{name}.{dtype}.data"
            if not data.exists():
                ran = troupe("pack", "entry.py:data", "-o", data, "--file_samples", 20, MODEL=name, DTYPE=dtype)
                if not passed(f"train {name} {dtype}: packed", ran.returncode == 0, ran.stderr[-300:]):
                    continue
            steps, limit = (50, 1e-9) if dtype == "float64" else (10, 1e-4)
            rate = 0.01
            wanted = {ranks: reference(name, dtype, steps, 8, ranks, rate) for ranks in (1, 2, 4)}
            cases = [(ranks, strategy, [], {}) for ranks in (1, 2, 4) for strategy in ("ddp", "fsdp")]
            cases.append((2, "ddp", [], {"TROUPE_FAULT": f"slot=1,step={steps // 2},at=collective"}))
            cases.append((2, "fsdp", [], {"TROUPE_FAULT": f"slot=1,step={steps // 2},at=collective"}))
            if dtype == "float32":
                cases = [c for c in cases if c[0] == 2]
            for ranks, strategy, more, environment in cases:
                run = FOLDER / "runs" / f"{name}-{dtype}-{ranks}-{strategy}{'-kill' if environment else ''}"
                shutil.rmtree(run, ignore_errors=True)
                ran = launch(run, name, dtype, ranks, strategy, steps, rate, *more, **environment)
                far = worst(losses_of(run), wanted[ranks]) if ran.returncode == 0 else float("inf")
                if environment and '"generation":2' not in (run / "metrics.jsonl").read_text():
                    passed(f"train {run.name}: a rank was lost", False)
                passed(f"train {run.name}: {steps} losses within {far:.1e}", far < limit, f"limit {limit}; {(ran.stderr + ran.stdout)[-400:]}")
            if dtype == "float64" and name != "resnet18":  # other ranks, other batch statistics
                run = FOLDER / "runs" / f"{name}-{dtype}-resumed"
                shutil.rmtree(run, ignore_errors=True)
                first = launch(run, name, dtype, 2, "ddp", steps // 2, rate)
                then = launch(run, name, dtype, 4, "fsdp", steps, rate, "--resume", "latest")
                good = first.returncode == 0 and then.returncode == 0
                far = worst(losses_of(run), wanted[2]) if good else float("inf")
                passed(f"train {run.name}: 2 ranks, then 4, within {far:.1e}", far < limit, f"limit {limit}; {(then.stderr + then.stdout)[-400:]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--models", default=",".join(models.ALL))
    parser.add_argument("--dtypes", default="float64,float32")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", help="of random modules, in place of --count from --seed on: 1154,1158")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "entry.py").write_text(ENTRY)
    begin = time.monotonic()
    seeds = [int(seed) for seed in options.seeds.split(",")] if options.seeds else list(range(options.seed, options.seed + options.count))
    names, dtypes = options.models.split(","), options.dtypes.split(",")
    parts = options.parts or ["refusals", "data", "models", "random", "costs", "places", "train"]
    for part in parts:
        if part == "refusals":
            refusals.check(troupe, passed, FOLDER)
        elif part == "data":
            python_data.check_data(troupe, passed, FOLDER)
            python_data.check_call(passed, FOLDER)
        elif part == "models":
            rounding.check_rounding(passed)
            check_models(names, dtypes)
        elif part == "random":
            random_modules.check(troupe, passed, FOLDER, seeds)
        elif part == "costs":
            costs.check(troupe, passed, FOLDER)
        elif part == "places":
            places.check(TROUPE, passed, FOLDER)
        elif part == "train":
            check_training([n for n in names if n != "gpt_dropout"], dtypes)  # whose masks are Troupe's
        elif part == "ci":  # a share of each
            rounding.check_rounding(passed)
            check_models(["gpt_dropout"], ["float32"])
            costs.check(troupe, passed, FOLDER)
            check_training(["two_towers"], ["float64"])
            random_modules.check(troupe, passed, FOLDER, [*range(1, 5), *random_modules.KNOWN_HARD])
        else:
            sys.exit(f"there is no part {part}: refusals, data, models, random, costs, places, train, ci")
    print(f"compiled: {len(successes)} passed, {len(failures)} failed, {time.monotonic() - begin:.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
