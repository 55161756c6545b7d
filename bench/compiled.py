"""The rows compiled/*: both sides at their best, as it is, compiled, and in channels_last."""
import os
import statistics
import subprocess
import sys
import time

from harness import OURS, ROOT, TORCHRUN, Program, flat, report, step_answers, step_times, weights_differences

JOBS = {"compiled/ddp.mlp/b64": ("ddp", "mlp", 64), "compiled/ddp.gpt": ("ddp", "gpt", 1), "compiled/ddp.resnet": ("ddp", "resnet", 32),
        "compiled/fsdp.gpt": ("fsdp", "gpt", 1)}
COMPILED_TARGETS = {row: 1.0 for row in JOBS}
STEPS = {"mlp": 15, "gpt": 5, "resnet": 5}
# Of weights after one step. Compiled code adds up in another order, and AdamW's first step is 1e-3 for any gradient, with its sign.
TOLERANCE = {"mlp": 2.1e-3, "gpt": 2.1e-3, "resnet": 1e-5}
FOLDER = ROOT / "build/bench-compiled"
TROUPE = ROOT / "build/release/launch/troupe"


def compiled_file(name):
    """The file of a job of peer/compiled_jobs.py, and how many seconds it took; compiled anew for each row."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path, begin = FOLDER / f"{name}.tm", time.perf_counter()
    command = [str(TROUPE), "compile", f"bench/peer/compiled_jobs.py:{name}", "-o", str(path), "--check"]
    ran = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env=dict(os.environ, TROUPE_PYTHON=TORCHRUN[0], OMP_NUM_THREADS="1"))
    if ran.returncode != 0:
        sys.exit(f"bench: {ran.stderr.strip()}")
    return path, time.perf_counter() - begin


def ours(strategy, job, batch, *flags):
    command = [str(OURS / "bench_steps"), "--job", job, "--batch", str(batch), "--strategy", strategy, *flags]
    return Program(command, f"bench_steps {job} {strategy} {' '.join(flags)}")


def peer(strategy, job, batch, *flags):
    flags = flags + (("--bucket-mb", "25") if strategy == "ddp" else ("--keep",))
    # Its own caches would hide what the first compile takes.
    return Program([*TORCHRUN, f"bench/peer/{strategy}.py", "--job", job, "--batch", str(batch), *flags], f"{strategy} {' '.join(flags)}",
                   dict(os.environ, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1", TORCH_LOGS="-all"))


def run_compiled(row, blocks, steps):
    strategy, job, batch = JOBS[row]
    path, seconds = compiled_file(job)
    mine = {"eager": ours(strategy, job, batch), "compiled": ours(strategy, job, batch, "--model", str(path))}
    theirs = {"eager": peer(strategy, job, batch), "torch.compile": peer(strategy, job, batch, "--compile", "whole"),
              "torch.compile, blocks": peer(strategy, job, batch, "--compile", "blocks")}
    if job == "resnet":
        in_other_order, _ = compiled_file("resnet_channels_last")
        mine["channels_last"] = ours(strategy, job, batch, "--channels-last", "true")
        mine["compiled, channels_last"] = ours(strategy, job, batch, "--channels-last", "true", "--model", str(in_other_order))
        theirs["channels_last"] = peer(strategy, job, batch, "--channels-last")
        theirs["torch.compile, channels_last"] = peer(strategy, job, batch, "--channels-last", "--compile", "whole")
    everyone = {**{("ours", name): program for name, program in mine.items()}, **{("peer", name): program for name, program in theirs.items()}}
    load_ms = float(mine["compiled"].before["model_load_ms"][0])
    first_s = {}  # torch.compile's is the time that it takes
    for name, program in everyone.items():
        begin = time.perf_counter()
        program.ask("block 1", "step_ms")
        first_s[name] = time.perf_counter() - begin
    differences = weights_differences(everyone, ("ours", "eager"), end=False)
    times = step_times(step_answers(everyone, blocks, steps or STEPS[job]))
    for program in everyone.values():
        program.quit()
    best = min(mine, key=lambda name: statistics.median(flat(times["ours", name])))
    extra = {"our_setting": best.replace(" ", "_"), "compile_s": round(seconds, 1), "model_load_ms": round(load_ms, 1),
             "file_MB": round(path.stat().st_size / 1e6, 1), "torch_compile_s": round(first_s["peer", "torch.compile"], 1),
             "max_weight_difference": max(differences.values())}
    result = report(row, COMPILED_TARGETS[row], times["ours", best], {name: times["peer", name] for name in theirs}, "ms", extra,
                    weight_tolerance=TOLERANCE[job])
    result["ours_all"] = {name: times["ours", name] for name in mine}
    for name in mine:
        print(f"    ours, {name}: {statistics.median(flat(times['ours', name])):.1f} ms", flush=True)
    for name in theirs:
        print(f"    peer, {name}: {statistics.median(flat(times['peer', name])):.1f} ms", flush=True)
    return [result]
